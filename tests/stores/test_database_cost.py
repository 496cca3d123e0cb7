"""What a turn costs: exact numbers of statements and rows, whatever the chat's length."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nexo_django import Session
from nexo_django.messages import SUMMARY, USER, Message
from nexo_django.models import Chat, Compaction, ToolCall, ToolOutput, Turn
from nexo_django.models import Message as Row
from tests.benchmarks.filling import fill
from tests.stores.changes import change
from tests.support import Script, make_agent

pytestmark = pytest.mark.django_db(transaction=True)

# Find the chat; claim it, with the turn and its prompt; the view; the answer; give it back.
PLAIN = "SELECT BEGIN UPDATE INSERT INSERT COMMIT SELECT SELECT BEGIN UPDATE INSERT UPDATE COMMIT UPDATE"


def session(messages: int) -> Session:
    made = Session.resume(make_agent(Script(), name="Benchmark"), f"of {messages}")
    made.prompt("begin")
    fill(made.instance_id, messages - 2)
    return made


def compacted(messages: int) -> Session:
    made = session(messages)
    turn: Any = made.stored.maintain()
    view, summary = turn.messages, Message(USER, "so far", kind=SUMMARY)
    cut = view[-3].replace(content="(cut)", mark="x")
    turn.compacted(change(view, summary, view[-6], cut, *view[-2:]))
    turn.close()
    return made


def statements(made: Session) -> str:
    """Run a turn and give its statements' first words."""
    with CaptureQueriesContext(connection) as captured:
        made.prompt("next")
    words = [query["sql"].split()[0].strip("(") for query in captured.captured_queries]
    # MySQL is told its isolation whenever it is connected to, which a turn does once more.
    return " ".join(word for word in words if word != "SET")


@pytest.mark.parametrize("make", [session, compacted])
@pytest.mark.parametrize("messages", [10, 2_000])
def test_a_plain_turn_is_the_same_statements_in_every_chat(make: Any, messages: int) -> None:
    made = make(messages)
    made.prompt("warm up")
    assert statements(made) == PLAIN


def test_a_plain_turn_writes_a_turn_and_two_messages() -> None:
    tables = (Chat, Turn, Row, ToolCall, Compaction, ToolOutput)
    made = session(10)
    before = [table.objects.count() for table in tables]
    made.prompt("next")
    after = [table.objects.count() for table in tables]
    assert [a - b for a, b in zip(after, before, strict=True)] == [0, 1, 2, 0, 0, 0]
