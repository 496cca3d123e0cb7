"""What a death left open is closed, once, in the places that were kept for it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nexo_django import transcript
from nexo_django.exceptions import StoreFailed
from nexo_django.messages import ASSISTANT, TOOL, USER, Message, ToolCall
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as CallRow
from tests.models.support import (
    abandon,
    answer,
    ask,
    calling,
    contents,
    dump,
    go_on,
    make_chat,
    new_chat,
    result,
    row_of,
)

pytestmark = pytest.mark.django_db

# How far each of three calls came before the process died.
STATES = list(itertools.product(("waiting", "started", "finished"), repeat=3))


def left(chat: Any, states: tuple[str, ...]) -> None:
    """Leave a turn behind whose calls came so far."""
    turn = chat.begin(ask("first"))
    turn.append(calling("a", "b", "c"))
    for n, state in enumerate(states):
        if state != "waiting":
            turn.start_call(ToolCall(f"call_{n}", "x"))
        if state == "finished":
            turn.append(result(n))
    abandon(chat)


@pytest.mark.parametrize("states", STATES, ids="-".join)
def test_the_next_prompt_closes_every_call(states: tuple[str, ...]) -> None:
    chat = new_chat()
    left(chat, states)
    turn = chat.begin(ask("second"))
    assert transcript.problem(turn.messages) is None
    results = [m for m in turn.messages if m.role == TOOL]
    assert [m.is_error for m in results] == [state != "finished" for state in states]
    assert [m.position for m in results] == [3, 4, 5]
    assert turn.messages == list(chat.history())
    statuses = CallRow.objects.order_by("index").values_list("status", flat=True)
    assert list(statuses) == ["done" if s == "finished" else "interrupted" for s in states]
    assert {row.turn.number for row in Row.objects.filter(role="tool")} <= {1, 2}
    turn.close()
    before = dump()
    assert chat.view() == turn.messages
    assert dump() == before
    abandon(chat)
    again = chat.begin(ask("third"))
    assert again.messages == [*turn.messages, Message(USER, "third")]
    assert Row.objects.count() == len(turn.messages) + 1
    again.close()


@pytest.mark.parametrize("states", STATES, ids="-".join)
@pytest.mark.parametrize("idempotent", [frozenset(), frozenset({"b"})], ids=["", "b-again"])
def test_continuing_runs_what_may_run(states: tuple[str, ...], idempotent: frozenset[str]) -> None:
    chat = new_chat()
    left(chat, states)
    turn = chat.begin(go_on(idempotent=idempotent))
    wanted = [
        n
        for n, state in enumerate(states)
        if state == "waiting" or (state == "started" and n == 1 and idempotent)
    ]
    opened = transcript.open_calls(turn.messages)
    assert [call.id for call in opened] == [f"call_{n}" for n in wanted]
    for call in reversed(opened):
        turn.start_call(call)
        turn.append(Message(TOOL, f"again {call.id}", tool_call_id=call.id))
    for n in set(range(3)) - set(wanted):
        with pytest.raises(StoreFailed):
            turn.append(result(n, "twice"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    view = chat.view()
    assert view == list(chat.history())
    assert transcript.problem(view) is None
    for n, (state, message) in enumerate(zip(states, view[2:5], strict=True)):
        if n in wanted:
            assert message.content == f"again call_{n}"
        elif state == "finished":
            assert message.content == f"result {n}"
        else:
            assert message.content == transcript.INTERRUPTED_TEXT


def test_a_death_while_repairing_is_repaired() -> None:
    chat = new_chat()
    for text in ("first", "second", "third"):
        turn = chat.begin(ask(text))
        turn.append(calling("a", "b"))
        turn.append(result(1))
        abandon(chat)
    turn = chat.begin(ask("fourth"))
    assert transcript.problem(turn.messages) is None
    assert len([m for m in turn.messages if m.role == TOOL]) == 6
    turn.close()
    assert transcript.problem(chat.view()) is None


def test_calls_open_far_back_are_closed_where_they_are() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    turn.append(calling("a"))
    turn.append(result(0))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    answer(chat, "second")
    # As an import or another program may leave it.
    Row.objects.filter(role="tool").delete()
    CallRow.objects.update(status="running")
    assert transcript.problem(chat.view()) is None
    turn = chat.begin(ask("third"))
    assert turn.messages[2].content == transcript.INTERRUPTED_TEXT
    assert turn.messages == list(chat.history())
    turn.close()


def test_rows_made_by_hand_are_mended_in_the_view() -> None:
    row = make_chat()
    asking = Row.objects.create(chat=row, role="assistant", content="looking")
    CallRow.objects.create(message=asking, call_id="c", name="x")
    Row.objects.create(chat=row, role="tool", content="of nothing")
    Row.objects.create(chat=row, role="user", content="next")
    chat = new_chat()
    chat.instance_id = row.instance_id
    for prompt in ("one", "two"):
        turn = chat.begin(ask(prompt))
        assert transcript.problem(turn.messages) is None
        assert "next" in contents(turn.messages)
        assert "of nothing" not in contents(turn.messages)
        turn.append(Message(ASSISTANT, "done"))
        turn.close()
    assert "of nothing" in contents(list(chat.history()))
    assert row_of(chat).message_count == 7
    assert Row.objects.count() == 7


def test_a_turn_that_is_continued_twice() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    turn.append(calling("a", "b"))
    turn.start_call(ToolCall("call_0", "a"))
    abandon(chat)
    turn = chat.begin(go_on())
    turn.start_call(ToolCall("call_1", "b"))
    abandon(chat)
    turn = chat.begin(go_on(idempotent=frozenset({"a", "b"})))
    # The first was settled when its tool was not known to be safe.
    assert [call.id for call in transcript.open_calls(turn.messages)] == ["call_1"]
    turn.close()
