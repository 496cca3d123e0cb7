"""A change tells a store enough to keep the originals and to build the view again."""

from __future__ import annotations

import pytest

from nexo_django.compaction import Change, CompactionPipeline, SlidingWindow, ToolResults, ladder
from nexo_django.compaction.sliding_window import NOTE
from nexo_django.messages import SUMMARY, SYSTEM, Message, Usage
from tests.compaction.conversations import Summariser
from tests.compaction.test_sliding_window import WHOLE

STORED = [message.replace(position=index) for index, message in enumerate(WHOLE)]


def change(before: list[Message], view: list[Message]) -> Change:
    return Change(
        before=tuple(before),
        view=tuple(view),
        trigger="threshold",
        layers=(),
        context=0,
        tokens_before=0,
        tokens_after=0,
        target=0,
        reached=True,
        floor=0,
        usage=Usage(),
    )


def test_dropped_turns_move_the_boundary():
    view = CompactionPipeline().use(SlidingWindow, keep_steps=2).compact(STORED, 1200)
    told = change(STORED, view)
    assert [m.position for m in told.removed] == [1, 2, 3, 4]
    assert told.front == (NOTE,)
    assert told.added == (NOTE,)
    assert told.first_kept_position == 5
    assert told.upto_position == len(STORED) - 1
    assert told.rewrites == {}


def test_rewritten_results_keep_their_position():
    view = CompactionPipeline().use(ToolResults).compact(STORED, 1)
    told = change(STORED, view)
    assert told.removed == told.added == told.front == ()
    assert told.rewrites[7].mark == "tool_results"
    assert sorted(told.rewrites) == [7, 9]
    assert all(old.position == new.position for old, new in told.rewritten)
    assert told.first_kept_position == 1


def test_a_cut_in_the_task_leaves_rows_out():
    view = ladder(Summariser()).compact(STORED, 400)
    told = change(STORED, view)
    assert [m.kind for m in told.front] == [SUMMARY]
    assert told.first_kept_position == 5
    left_out = [position for position, shown in told.rewrites.items() if shown is None]
    assert left_out == [6, 7]
    assert told.view[0].role == SYSTEM


def test_an_earlier_note_is_left_out_for_good():
    note = NOTE.replace(position=6)
    stored = [
        STORED[0],
        note,
        *STORED[1:6],
        *(m.replace(position=m.position + 1) for m in STORED[6:]),
    ]
    view = CompactionPipeline().use(SlidingWindow).compact(stored, 1)
    assert change(stored, view).rewrites[6] is None


@pytest.mark.parametrize("repeated", [False, True], ids=("own ids", "repeated ids"))
def test_placeholders_are_found_when_ids_repeat_and_nothing_has_a_position(repeated):
    messages = [m.replace(tool_call_id="same") if m.tool_call_id and repeated else m for m in WHOLE]
    view = [
        *messages[5:9],
        messages[9].replace(content="gone", mark="tool_results"),
        *messages[10:],
    ]
    told = change(messages, view)
    assert told.sources == tuple(range(5, len(messages)))
    assert told.rewritten == ((messages[9], view[4]),)
    assert told.removed == tuple(messages[:5])


def test_nothing_changed_is_told_as_that():
    told = change(STORED, STORED)
    assert told.removed == told.added == told.rewritten == told.front == ()
    assert told.first_kept_position == 1


def test_its_repr_shows_no_messages():
    shown = repr(change(STORED, STORED))
    assert "tokens_before=" in shown
    assert "Message(" not in shown
