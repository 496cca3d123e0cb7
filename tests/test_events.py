"""The sink of a turn's events."""

from __future__ import annotations

from typing import Any

import pytest

from nexo_django.events import EVENTS, HOOKS, Event, Events


def test_events_are_kept_and_handed_on_in_order() -> None:
    heard: list[tuple[int, str, dict[str, Any]]] = []
    events = Events(
        lambda kind, payload: heard.append((1, kind, payload)),
        lambda kind, payload: heard.append((2, kind, payload)),
    )
    events.emit("content", {"text": "a"})
    events.emit("done", {})
    assert events == [Event("content", {"text": "a"}), Event("done", {})]
    assert heard == [
        (1, "content", {"text": "a"}),
        (2, "content", {"text": "a"}),
        (1, "done", {}),
        (2, "done", {}),
    ]


def test_events_need_not_be_kept() -> None:
    heard: list[str] = []
    events = Events(lambda kind, payload: heard.append(kind), keep=False)
    events.emit("content", {"text": "a"})
    assert heard == ["content"]
    assert events == []


def test_what_a_listener_raises_passes() -> None:
    def fail(kind: str, payload: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Events(fail).emit("content", {})


def test_names_are_unique() -> None:
    names = [*EVENTS, *HOOKS]
    assert len(set(names)) == len(names)
