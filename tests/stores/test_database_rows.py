"""Reading: the same number of queries for any history, which comes in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nexo_django.messages import ASSISTANT, NOTICE, SUMMARY, SYSTEM, USER, Message
from nexo_django.models import Chat, Compaction
from nexo_django.models import Message as Row
from nexo_django.stores import rows
from tests.models.support import ask, calling, contents, new_chat, result, row_of

pytestmark = pytest.mark.django_db


def turns(chat: Any, count: int) -> None:
    for n in range(count):
        turn = chat.begin(ask(f"prompt {n}"))
        turn.append(calling("a", "b"))
        turn.append(result(1))
        turn.append(result(0))
        turn.append(Message(ASSISTANT, f"answer {n}"))
        turn.close()


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 20, 500])
def test_the_history_comes_in_pieces(batch: int, monkeypatch: Any) -> None:
    chat = new_chat()
    turns(chat, 4)
    whole = list(chat.history())
    assert len(whole) == 20
    assert whole == chat.view()
    monkeypatch.setattr(rows, "BATCH", batch)
    with CaptureQueriesContext(connection) as captured:
        assert list(chat.history()) == whole
    assert len(captured) <= 1 + 2 * (20 // batch + 1)


def test_a_history_that_is_left_early_is_not_read(monkeypatch: Any) -> None:
    chat = new_chat()
    turns(chat, 3)
    monkeypatch.setattr(rows, "BATCH", 2)
    with CaptureQueriesContext(connection) as captured:
        assert next(chat.history()).content == "prompt 0"
    assert len(captured) <= 3


def test_a_history_may_grow_while_it_is_read(monkeypatch: Any) -> None:
    chat = new_chat()
    turns(chat, 1)
    monkeypatch.setattr(rows, "BATCH", 2)
    reading = chat.history()
    next(reading)
    turns(chat, 1)
    assert len([None, *reading]) == 10


def test_a_view_takes_as_many_queries_for_ten_rows_as_for_thousands() -> None:
    chat = new_chat()
    turns(chat, 2)
    counted = []
    for filler in (0, 2000):
        first = row_of(chat).next_position
        Row._base_manager.bulk_create(
            Row(chat=row_of(chat), role="user", position=first + n, content="x")
            for n in range(filler)
        )
        with CaptureQueriesContext(connection) as captured:
            assert len(chat.view()) == 10 + filler
        counted.append(len(captured))
    assert counted[0] == counted[1] <= 3


def compact(chat: Any, first: int, summary: Any = None, **fields: Any) -> None:
    row = row_of(chat)
    version = row.compactions.count() + 1
    row.current_compaction = Compaction.objects.create(
        chat=row, version=version, first_kept_position=first, summary=summary, **fields
    )
    row.save(update_fields=["current_compaction"])


def test_a_view_begins_at_the_boundary_behind_its_summary() -> None:
    chat = new_chat()
    turns(chat, 3)
    turn = chat.begin(ask("last"))
    turn.set_system("be kind")
    summary = turn.append(Message(USER, "what was said", kind=SUMMARY))
    turn.close()
    stored = row_of(chat).messages.get(kind="summary")
    compact(chat, 11, stored)
    view = chat.view()
    assert view[0] == Message(SYSTEM, "be kind")
    assert view[1] == summary
    assert contents(view[2:]) == ["prompt 2", None, "result 0", "result 1", "answer 2", "last"]
    assert len(list(chat.history())) == 18
    turn = chat.begin(ask("another"))
    assert contents(turn.messages) == [*contents(view), "another"]
    turn.close()


def test_what_is_before_the_boundary_is_not_read() -> None:
    chat = new_chat()
    turns(chat, 4)
    compact(chat, 16)
    with CaptureQueriesContext(connection) as captured:
        assert contents(chat.view())[0] == "prompt 3"
    assert not any("prompt 0" in str(query) for query in captured.captured_queries)
    read = rows.view(row_of(chat), Row.objects)
    assert (len(read.messages), len(read.calls)) == (5, 1)


def test_results_are_rewritten_and_rows_left_out() -> None:
    chat = new_chat()
    turns(chat, 2)
    shown = result(0, "(an earlier result)", mark="tool_results")
    compact(chat, 1, rewrites={"3": shown.to_dict()}, left_out=[[5, 5]])
    view = chat.view()
    assert contents(view)[2] == "(an earlier result)"
    assert view[2].mark == "tool_results"
    assert view[2].tool_call_id == "call_0"
    assert [m.position for m in view] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert contents(list(chat.history()))[2] == "result 0"


def test_to_undo_is_to_go_back() -> None:
    chat = new_chat()
    turns(chat, 3)
    whole = chat.view()
    compact(chat, 6)
    compact(chat, 11)
    assert len(chat.view()) == 5
    Chat.objects.update(current_compaction=row_of(chat).compactions.get(version=1))
    assert len(chat.view()) == 10
    Chat.objects.update(current_compaction=None)
    assert chat.view() == whole


def test_a_notice_is_shown() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(Message(USER, "a notice", kind=NOTICE))
    turn.close()
    assert contents(chat.view()) == ["hello", "a notice"]
