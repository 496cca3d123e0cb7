"""Sessions inside the transaction of Django's own test case."""

from __future__ import annotations

from django.test import TestCase

from nexo_django import Session
from tests.support import Script, make_agent


class TestInATransaction(TestCase):
    """What Django's own test case wraps is seen by every verb, and rolled back."""

    async def test_async(self):
        session = Session.resume(make_agent(Script("one", "two")), "case")
        assert (await session.aprompt("hello")).content == "one"
        streamed = [event async for event in session.astream("again")]
        assert streamed[-1].payload["content"] == "two"
        assert len(await session.ahistory()) == 4

    def test_sync(self):
        session = Session.resume(make_agent(Script("one", "two")), "case")
        assert session.history() == []
        assert session.prompt("hello").content == "one"
        assert list(session.stream("again"))[-1].payload["content"] == "two"
