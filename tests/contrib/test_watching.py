"""Watching rows: whatever the order they are stored in, the ids never skip one."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django.contrib.envelope import Refused
from nexo_django.contrib.live import topics
from nexo_django.contrib.reading import Cursor
from nexo_django.contrib.watching import Sent, Watch


class Rows:
    """A source whose rows are stored while it is watched; results in any order."""

    alias, chat_id = "default", 10**9

    def __init__(self, rows):
        self.rows = rows

    def after(self, position, turn):
        found = sorted(
            (r for r in self.rows if r["position"] > position), key=lambda r: r["position"]
        )
        part = found[:3]
        return part, part[-1]["position"] if part else position, len(found) > 3

    def state(self, turn):
        return Running()


class Running:
    settled = False


def conversation(sizes):
    """Give rows in an order in which they may be stored: a step's results in any."""
    position = itertools.count(1)
    rows = []
    for size, order in sizes:
        calls = [{"id": f"c{n}"} for n in range(size)]
        row = {"position": next(position), "role": "assistant", "content": "", "turn": 1}
        rows.append([{**row, "tool_calls": calls}])
        results = [
            {
                "position": next(position),
                "role": "tool",
                "content": "x",
                "turn": 1,
                "tool_call_id": f"c{n}",
                "name": "t",
                "is_error": False,
            }
            for n in range(size)
        ]
        rows += [[results[n]] for n in order]
    return [row for group in rows for row in group]


steps = st.integers(0, 5).flatmap(
    lambda size: st.tuples(st.just(size), st.permutations(range(size)))
)


@given(st.lists(steps, min_size=1, max_size=4), st.data())
def test_from_any_id_on_everything_comes(sizes, data):
    stored = conversation(sizes)
    seen, source = [], Rows([])
    watch = Watch(source, 1, Cursor(0), threading.Event().set)
    try:
        at = 0
        while at < len(stored):
            at = data.draw(st.integers(at + 1, len(stored)))
            source.rows = stored[:at]
            seen += watch.rows()
    finally:
        watch.close()
    assert positions(seen) == {row["position"] for row in stored}
    assert len([e for e in seen if e.type == "tool_result"]) == sum(size for size, _ in sizes)
    cut = data.draw(st.integers(0, len(seen)))
    got = seen[:cut]
    last = next((e.id for e in reversed(got) if e.id), "0")
    again = Watch(source, 1, Cursor.read(last), threading.Event().set)
    try:
        rest = again.rows()
    finally:
        again.close()
    assert positions(got) | positions(rest) == {row["position"] for row in stored}
    told = {e.payload["id"] for e in got + rest if e.type == "tool_call"}
    assert told == {f"c{n}" for size, _ in sizes for n in range(size)}


def positions(seen):
    return {e.payload["position"] for e in seen if e.type in ("message", "tool_result")}


def test_text_never_comes_after_its_message():
    source = Rows([])
    watch = Watch(source, 1, Cursor(0), threading.Event().set)
    try:
        topic = topics.publish(watch.key, 1)
        watch.rows()
        topic.say("content", "one ")
        topic.say("content", "two ")
        assert watch.text() == [Sent("content", {"text": "one two ", "offset": 0})]
        topic.say("content", "three")
        source.rows = conversation([(0, ())])
        # Stored, and not yet told to be: what is left of the text is in the message.
        watch.rows()
        assert watch.text() == []
        topic.next(2)
        topic.say("content", "next")
        assert watch.behind
        assert watch.text() == []
        watch.rows()
        assert watch.text() == [Sent("content", {"text": "next", "offset": 0})]
    finally:
        topics.finish(watch.key)
        watch.close()


@pytest.mark.parametrize("cursor", [Cursor(), Cursor(7), Cursor(7, 2, "done")])
def test_a_cursor_reads_what_it_wrote(cursor):
    assert Cursor.read(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "a", "1.", "1.2", "1.2.", "-1", "1.2.3", "1\n", " 1"])
def test_another_cursor_is_refused(text):
    with pytest.raises(Refused):
        Cursor.read(text)


def test_an_event_is_one_block():
    sent = Sent("content", {"text": "a\nb\r\n\n\ud800ü\u2028"}, "7").encode()
    assert sent.count(b"\n\n") == 1
    assert sent.endswith(b"\n\n")
    assert sent.startswith(b"event: content\nid: 7\ndata: ")
    assert sent.count(b"\n") == 4
    assert b"\r" not in sent
