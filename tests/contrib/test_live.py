"""Live text: what watchers are woken for, and that it fits the rows it stands between."""

from __future__ import annotations

import threading

from nexo_django import events
from nexo_django.contrib.live import Draft, Publisher, Topic, Topics, topics

KEY = ("default", 10**9)


def test_a_topic_is_gone_when_nobody_needs_it():
    made, wake = Topics(), threading.Event().set
    topic = made.watch(KEY, wake)
    assert made.publish(KEY, 2) is topic
    assert not made.leave(KEY, wake) or made.open[KEY] is topic
    made.finish(KEY)
    assert made.open == {}
    assert made.leave(KEY, wake)


def test_a_publisher_wakes_those_who_watch():
    woken = []
    topic = topics.watch(KEY, lambda: woken.append(1))
    publisher = Publisher(KEY, 5)
    try:
        moved, draft = topic.state()
        publisher(events.CONTENT, {"text": "a"})
        publisher(events.REASONING, {"text": "b"})
        assert (draft.at, draft.content, draft.reasoning) == (5, ["a"], ["b"])
        assert topic.state() == (moved, draft)
        publisher(events.TOOL_CALL, {"id": "1"})
        assert topic.state()[0] == moved + 1
        publisher(events.RETRY, {"attempt": 1, "wait": 2, "error": "the key is hunter2"})
        assert [(n.type, n.payload) for n in topic.notes] == [("retry", {"attempt": 1, "wait": 2})]
    finally:
        publisher.close()
        topics.watched()[KEY].watchers.clear()
        topics.reset()
    assert len(woken) == 6


def test_a_draft_from_elsewhere_grows_and_begins_anew():
    topic = Topic()
    moved, _ = topic.state()
    topic.show(3, "ab", "")
    first = topic.state()
    assert first[0] == moved + 1
    topic.show(3, "abcd", "x")
    assert topic.state() == first
    assert (first[1].content, first[1].reasoning) == (["ab", "cd"], ["x"])
    # Another process took the turn up, and says something else in the same place.
    topic.show(3, "zz", "")
    assert topic.state()[1].content == ["zz"]
    topic.show(4, "zz!", "")
    assert topic.state()[1] == topic.draft != Draft(4)
    assert topic.draft.at == 4
