"""The stored reply of a key, from any process and any store."""

from __future__ import annotations

import asyncio

import pytest

from nexo_django import Session
from nexo_django.exceptions import ProviderUnavailable
from tests.support import Script, make_agent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["database", "memory", "jsonl"])
def store(request, settings, tmp_path):
    name = f"jsonl:{tmp_path}" if request.param == "jsonl" else request.param
    settings.NEXO = {**settings.NEXO, "SESSION_STORE": name}


def test_a_reply_is_found_by_its_key(store):
    agent = make_agent(Script("one", "two"))
    session = Session.resume(agent, "by-key")
    assert session.reply("first") is None
    given = session.prompt("Hello.", key="first")
    session.prompt("More.", key="second")
    found = Session.resume(agent, "by-key").reply("first")
    assert (found.content, found.status, found.turn) == ("one", "done", given.turn)
    assert asyncio.run(session.areply("second")).content == "two"
    assert session.reply("third") is None


def test_a_failed_turn_has_no_reply_yet(store):
    agent = make_agent(Script(ProviderUnavailable(), "late"))
    session = Session.resume(agent, "failed")
    with pytest.raises(ProviderUnavailable):
        session.prompt("Hello.", key="k")
    assert session.reply("k") is None
    session.continue_turn()
    assert session.reply("k").content == "late"


@pytest.mark.parametrize("key", [None, "", b"k", ["k"]])
def test_what_is_no_key_is_refused(store, key):
    with pytest.raises((TypeError, ValueError)):
        Session.resume(make_agent(Script()), "x").reply(key)
