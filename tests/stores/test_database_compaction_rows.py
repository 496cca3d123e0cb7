"""What a compaction's row says, and that what it leaves out is not even read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nexo_django.messages import ASSISTANT, NORMAL, NOTICE, SUMMARY, USER, Message, Usage
from nexo_django.models import Chat, Compaction
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as CallRow
from nexo_django.stores import rows
from tests.models.support import abandon, ask, calling, contents, new_chat, result, row_of
from tests.stores.changes import change

pytestmark = pytest.mark.django_db


def steps(turn: Any, *names: str) -> None:
    for name in names:
        turn.append(calling("a", "b"))
        turn.append(result(1, f"b {name}"))
        turn.append(result(0, f"a {name}"))


def current(chat: Any) -> Compaction:
    found = row_of(chat).current_compaction
    assert isinstance(found, Compaction)
    return found


def summary(text: str = "so far", **fields: Any) -> Message:
    return Message(USER, text, kind=SUMMARY, mark="summary", **fields)


def loaded(chat: Any) -> rows.Rows:
    return rows.view(Chat.objects.get(pk=row_of(chat).pk), Row.objects)


def test_the_oldest_steps_of_a_task_are_left_out_by_the_query() -> None:
    chat = new_chat()
    turn = chat.begin(ask("task"))
    steps(turn, "1", "2", "3", "4")
    view = chat.view()
    shown = turn.compacted(change(view, summary(), view[0], *view[-6:]))
    assert contents(shown) == ["so far", "task", None, "a 3", "b 3", None, "a 4", "b 4"]
    assert current(chat).left_out == [[2, 7]]
    assert current(chat).rewrites == {}
    read = loaded(chat)
    assert (len(read.messages), len(read.calls)) == (8, 2)
    steps(turn, "5")
    view = chat.view()
    turn.compacted(change(view, view[0], view[1], *view[-3:]))
    # One range still, though a summary was stored between.
    assert current(chat).left_out == [[2, 13]]
    assert current(chat).summary == row_of(chat).messages.get(kind=SUMMARY)
    assert contents(chat.view()) == ["so far", "task", None, "a 5", "b 5"]
    assert len(loaded(chat).messages) == 5
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    view = chat.view()
    turn = chat.maintain()
    turn.compacted(change(view, summary("all of it"), view[-1]))
    turn.close()
    assert current(chat).left_out == []
    assert contents(chat.view()) == ["all of it", "done"]
    assert len(list(chat.history())) == 19


def test_what_a_rewritten_row_said_is_not_read() -> None:
    chat = new_chat()
    turn = chat.begin(ask("task"))
    turn.append(calling("a"))
    turn.append(result(0, "secret " * 10))
    view = chat.view()
    short = view[-1].replace(content="(cut)", mark="tool_results", token_count=None)
    turn.compacted(change(view, *view[:-1], short))
    turn.close()
    with CaptureQueriesContext(connection) as captured:
        assert chat.view()[-1] == short
    assert len(captured) == 3
    read = loaded(chat)
    assert all(row.content is None for row in read.messages if row.answers_id)


def test_a_boundary_costs_as_many_queries_for_a_hundred_rows_as_for_ten_thousand() -> None:
    counted = []
    for size in (100, 10_000):
        chat = new_chat()
        turn = chat.begin(ask("first"))
        turn.append(Message(ASSISTANT, "answer"))
        turn.close()
        row = row_of(chat)
        Row._base_manager.bulk_create(
            Row(chat=row, role="user", position=3 + n, content=f"filler {n}") for n in range(size)
        )
        Chat.objects.filter(pk=row.pk).update(next_position=3 + size)
        turn = chat.maintain()
        view = turn.messages
        old = view[-2].replace(content="(cut)", mark="x")
        with CaptureQueriesContext(connection) as compacting:
            turn.compacted(change(view, summary(), view[size // 2], old, view[-1]))
        turn.close()
        with CaptureQueriesContext(connection) as looking:
            assert len(chat.view()) == 4
        with CaptureQueriesContext(connection) as running:
            turn = chat.begin(ask("next"))
            turn.append(Message(ASSISTANT, "answer", usage=Usage(input=1)))
            turn.close()
        read = [loaded(chat), chat.view(as_of=row.next_position + size)]
        assert len(read[0].messages) == 6
        counted.append((len(compacting), len(looking), len(running)))
    assert counted[0] == counted[1]
    assert counted[0][2] <= 16


@pytest.mark.parametrize("kept", ["a", "b"])
def test_a_result_that_is_left_out_does_not_break_the_chat(kept: str) -> None:
    chat = new_chat()
    turn = chat.begin(ask("task"))
    steps(turn, "1")
    view = chat.view()
    results = [m for m in view[-2:] if (m.content or "").startswith(kept)]
    turn.compacted(change(view, *view[:2], *results))
    abandon(chat)
    again = chat.begin(ask("next"))
    texts = contents(again.messages)
    assert f"{kept} 1" in texts
    assert len(texts) == 5
    again.close()
    assert chat.undo_compaction()
    assert contents(chat.view()) == ["task", None, "a 1", "b 1", "next"]


def test_a_compactor_of_another_make_adds_what_it_likes() -> None:
    chat = new_chat()
    turn = chat.begin(ask("task"))
    steps(turn, "1", "2")
    view = chat.view()
    shown = turn.compacted(change(view, Message(USER, "they talked"), *view[-3:]))
    assert contents(shown) == ["they talked", None, "a 2", "b 2"]
    assert shown[0].kind == SUMMARY
    steps(turn, "3")
    view = chat.view()
    again = turn.compacted(
        change(view, view[0], Message(USER, "and", kind=NOTICE), *view[-3:], Message(USER, "so"))
    )
    assert contents(again) == ["they talked\n\nand\n\nso", None, "a 3", "b 3"]
    turn.close()
    assert chat.view() == again
    history = list(chat.history())
    assert [m.content for m in history if m.kind != NORMAL] == [
        "they talked",
        "they talked\n\nand\n\nso",
    ]


def test_notices_of_the_conversation_are_shown_and_notes_of_undone_compactions_not() -> None:
    chat = new_chat()
    turn = chat.begin(ask("one"))
    turn.append(Message(ASSISTANT, "1"))
    turn.close()
    turn = chat.begin(ask("two"))
    turn.append(Message(USER, "a notice", kind=NOTICE))
    view = chat.view()
    turn.compacted(change(view, Message(USER, "a note", kind=NOTICE), *view[-2:]))
    turn.append(Message(ASSISTANT, "2"))
    turn.close()
    assert contents(chat.view()) == ["a note", "two", "a notice", "2"]
    assert chat.undo_compaction()
    assert contents(chat.view()) == ["one", "1", "two", "a notice", "2"]
    assert "a note" in contents(list(chat.history()))


def test_the_row_tells_what_was_paid_and_how_long_it_took() -> None:
    chat = new_chat()
    turn = chat.begin(ask("task"))
    steps(turn, "1", "2")
    view = chat.view()
    told = change(view, summary(usage=Usage(input=3)), *view[-3:], usage=Usage(input=7, output=2))
    turn.compacted(told)
    turn.close()
    row = current(chat)
    assert row.usage == Usage(input=7, output=2).to_dict()
    assert row.duration == timedelta(0)
    # All that was spent, also on attempts that the summary's own report does not count.
    assert chat.usage() == turn.usage == Usage(input=7, output=2)
    assert CallRow.objects.filter(message__chat=row_of(chat)).count() == 4
