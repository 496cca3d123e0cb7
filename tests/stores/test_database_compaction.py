"""Compaction loses nothing: rows stay, a row moves the boundary, and undo is a step back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from nexo_django import transcript
from nexo_django.compaction.change import Change
from nexo_django.exceptions import LeaseLost, NothingToContinue, SessionBusy, SessionNotFound
from nexo_django.messages import (
    ASSISTANT,
    NOTICE,
    SUMMARY,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.models import Compaction, Turn
from nexo_django.models import Message as Row
from tests.models.support import (
    abandon,
    ask,
    calling,
    contents,
    dump,
    go_on,
    new_chat,
    result,
    row_of,
)

pytestmark = pytest.mark.django_db


def change(before: list[Message], view: list[Message], **fields: Any) -> Change:
    numbers = {"context": 900, "tokens_before": 800, "tokens_after": 100, "target": 200}
    told = {"trigger": "due", "layers": ("Summarize",), "reached": True, "floor": 10}
    return Change(
        tuple(before),
        tuple(view),
        **{**told, **numbers, "usage": Usage(), "seconds": 1.5, **fields},
    )


def summary(text: str = "what was said", **fields: Any) -> Message:
    return Message(USER, text, kind=SUMMARY, mark="summary", **fields)


def turns(chat: Any, *names: str) -> None:
    for name in names:
        turn = chat.begin(ask(f"prompt {name}"))
        turn.set_system("be kind")
        turn.append(calling("a"))
        turn.append(result(0, f"result {name}"))
        turn.append(Message(ASSISTANT, f"answer {name}"))
        turn.close()


def from_prompt(messages: list[Message], name: str) -> list[Message]:
    texts = contents(messages)
    return messages[texts.index(f"prompt {name}") :]


def test_a_summary_stands_for_what_came_before() -> None:
    chat = new_chat()
    turns(chat, "1", "2")
    whole = list(chat.history())
    turn = chat.begin(ask("prompt 3"))
    before = turn.messages
    used = Usage(50, 10, cost=Decimal("0.5"))
    told = change(before, [before[0], summary(usage=used), *from_prompt(before, "2")], usage=used)
    view = turn.compacted(told)
    assert contents(view) == [
        "be kind",
        "what was said",
        "prompt 2",
        None,
        "result 2",
        "answer 2",
        "prompt 3",
    ]
    assert view[1].kind == SUMMARY
    assert turn.append(Message(ASSISTANT, "answer 3")).position == 11
    turn.close()
    assert chat.view() == [*view, Message(ASSISTANT, "answer 3")]
    history = list(chat.history())
    assert history[: len(whole)] == whole
    assert [m.kind for m in history].count(SUMMARY) == 1
    row = Compaction.objects.get()
    assert row_of(chat).current_compaction == row
    assert (row.version, row.first_kept_position, row.upto_position) == (1, 5, 9)
    assert (row.tokens_before, row.tokens_after, row.tokens_target) == (800, 100, 200)
    assert (row.reached, row.trigger, row.layers, row.status) == (
        True,
        "due",
        ["Summarize"],
        "done",
    )
    assert row.duration is not None
    assert row.duration.total_seconds() == 1.5
    # Counted once, in the chat and in the turn.
    assert turn.usage == chat.usage() == used
    assert Turn.objects.get(number=3).usage == used


def test_what_was_spent_without_a_summary_is_counted() -> None:
    chat = new_chat()
    turns(chat, "1", "2")
    turn = chat.begin(ask("prompt 3"))
    note = Message(USER, "(earlier messages are left out)", kind=NOTICE)
    view = [turn.messages[0], note, *from_prompt(turn.messages, "2")]
    used = Usage(50, 10)
    turn.compacted(change(turn.messages, view, usage=used))
    turn.close()
    assert chat.usage() == used
    assert chat.usage().cost is None
    assert contents(chat.view())[:3] == ["be kind", note.content, "prompt 2"]


def test_a_compaction_builds_on_the_one_before() -> None:
    chat = new_chat()
    turns(chat, "1", "2", "3")
    turn = chat.begin(ask("prompt 4"))
    view = turn.messages
    placeholder = view[-3].replace(content="(cut)", mark="tool_results")
    assert placeholder.role == TOOL
    first = [view[0], summary("one"), *from_prompt(view, "2")]
    first = [placeholder if m is view[-3] else m for m in first]
    view = turn.compacted(change(view, first))
    assert contents(view) == contents(first)
    assert view[-3] == placeholder
    second = [view[0], summary("two"), *from_prompt(view, "3")]
    view = turn.compacted(change(view, second))
    assert contents(view) == ["be kind", "two", "prompt 3", None, "(cut)", "answer 3", "prompt 4"]
    # The last prompt stays where steps after the boundary are left out.
    third = [view[0], view[1], view[2], view[-1]]
    view = turn.compacted(change(view, third))
    assert contents(view) == ["be kind", "two", "prompt 3", "prompt 4"]
    assert turn.append(Message(ASSISTANT, "answer 4")).content == "answer 4"
    turn.close()
    assert contents(chat.view()) == ["be kind", "two", "prompt 3", "prompt 4", "answer 4"]
    assert [c.version for c in Compaction.objects.order_by("version")] == [1, 2, 3]
    last = row_of(chat).current_compaction
    assert last is not None
    assert last.parent is not None
    assert last.parent.parent is not None
    history = contents(list(chat.history()))
    assert [t for t in history if t and t.startswith("result")] == [
        "result 1",
        "result 2",
        "result 3",
    ]
    assert {"one", "two"} < set(history)


def test_undo_is_a_step_back_and_forth_again() -> None:
    chat = new_chat()
    turns(chat, "1", "2", "3")
    views = [chat.view()]
    for text, name in (("one", "2"), ("two", "3")):
        turn = chat.maintain()
        view = turn.messages
        turn.compacted(change(view, [view[0], summary(text), *from_prompt(view, name)]))
        turn.close()
        views.append(chat.view())
    for view in reversed(views[:-1]):
        assert chat.undo_compaction()
        assert chat.view() == view
    assert not chat.undo_compaction()
    turn = chat.maintain()
    note = Message(USER, "(left out)", kind=NOTICE)
    again = turn.compacted(change(views[0], [views[0][0], note, *from_prompt(views[0], "3")]))
    turn.close()
    assert contents(again)[:3] == ["be kind", "(left out)", "prompt 3"]
    assert chat.view() == again
    assert chat.undo_compaction()
    assert chat.view() == views[0]
    statuses = Compaction.objects.order_by("version").values_list("version", "status")
    assert list(statuses) == [(1, "undone"), (2, "undone"), (3, "undone")]


def test_undo_waits_for_no_turn() -> None:
    chat = new_chat()
    assert not chat.undo_compaction()
    turns(chat, "1", "2")
    turn = chat.begin(ask("prompt 3"))
    view = turn.compacted(
        change(turn.messages, [turn.messages[0], summary(), *from_prompt(turn.messages, "2")])
    )
    with pytest.raises(SessionBusy):
        chat.undo_compaction()
    assert chat.view() == view
    turn.close()
    assert chat.undo_compaction()


def test_the_view_as_it_was() -> None:
    chat = new_chat()
    turns(chat, "1", "2")
    early = chat.view()
    turn = chat.begin(ask("prompt 3"))
    turn.compacted(
        change(turn.messages, [turn.messages[0], summary(), *from_prompt(turn.messages, "2")])
    )
    turn.append(Message(ASSISTANT, "answer 3"))
    turn.close()
    turns(chat, "4")
    assert chat.view(as_of=8) == early
    assert chat.view(as_of=4) == early[:5]
    assert contents(chat.view(as_of=11))[1:] == [
        "what was said",
        *contents(from_prompt(early, "2")),
        "prompt 3",
        "answer 3",
    ]
    assert chat.view(as_of=10_000) == chat.view()
    assert [m.role for m in chat.view(as_of=0)] == [SYSTEM]
    assert new_chat().view(as_of=5) == []


def test_maintaining_is_no_turn() -> None:
    chat = new_chat()
    with pytest.raises(SessionNotFound):
        chat.maintain(wait=0)
    turns(chat, "1")
    turn = chat.maintain()
    assert (turn.number, turn.messages) == (0, chat.view())
    for busy in (lambda: chat.maintain(wait=0), lambda: chat.begin(ask())):
        with pytest.raises(SessionBusy):
            busy()
    turn.checkpoint(now=True)
    turn.finish("done")
    turn.close()
    turn.close()
    assert Turn.objects.count() == 1
    assert row_of(chat).lease_token == ""
    with pytest.raises(NothingToContinue):
        chat.begin(go_on())


def test_maintaining_leaves_an_interrupted_turn_to_go_on() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a", "b"))
    turn.start_call(ToolCall("call_0", "a"))
    abandon(chat)
    before = dump()
    maintained = chat.maintain()
    assert len(transcript.open_calls(maintained.messages)) == 2
    maintained.close()
    assert dump() == before
    turn = chat.begin(go_on())
    assert [call.id for call in transcript.open_calls(turn.messages)] == ["call_1"]
    turn.close()


def test_who_lost_the_chat_compacts_nothing() -> None:
    chat = new_chat()
    turns(chat, "1", "2")
    turn = chat.maintain()
    abandon(chat)
    other = chat.begin(ask("prompt 3"))
    before = dump()
    view = turn.messages
    with pytest.raises(LeaseLost):
        turn.compacted(change(view, [view[0], summary(), *from_prompt(view, "2")]))
    with pytest.raises(LeaseLost):
        turn.keep_output("late", ToolCall("call_0", "a"))
    assert dump() == before
    assert Compaction.objects.count() == 0
    other.close()


def test_a_deleted_chat_takes_its_compactions_along() -> None:
    chat = new_chat()
    turns(chat, "1", "2")
    for name in ("1", "2"):
        turn = chat.maintain()
        view = turn.messages
        turn.compacted(change(view, [view[0], summary(name), *from_prompt(view, name)]))
        turn.close()
    gone = chat.delete()
    assert (gone["compactions"], gone["messages"]) == (2, 11)
    assert Row.objects.count() == Compaction.objects.count() == 0
