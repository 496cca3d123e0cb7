"""What a turn says while it runs, for those who watch it: memory only, the rows are the truth.

A topic is a chat that is watched or whose turn runs in this process. It carries the text of
the message that is being written, and wakes its watchers when there may be new rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nexo_django import events, signals
from nexo_django.events import Event
from nexo_django.messages import SYSTEM, TOOL

Key = tuple[str, int]
NOTED = {events.RETRY: ("attempt", "wait"), events.COMPACTED: ("before", "after")}


@dataclass(eq=False)
class Draft:
    """The text of the message that will be stored at `at` or later, in pieces."""

    at: int = 0
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)


class Topic:
    """A chat's draft, and those to wake when something moved."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.draft = Draft()
        self.notes: list[Event] = []
        # Counts what may have changed the rows; a watcher reads them when it differs.
        self.moved = 1
        self.publishers = 0
        self.watchers: set[Callable[[], object]] = set()

    def state(self) -> tuple[int, Draft]:
        """Give both as they belong together: the draft comes after the rows of that count."""
        with self.lock:
            return self.moved, self.draft

    def say(self, type: str, text: str) -> None:
        """Add a piece of text to the draft."""
        pieces = self.draft.content if type == events.CONTENT else self.draft.reasoning
        pieces.append(text)
        self.wake()

    def note(self, event: Event) -> None:
        """Tell something that is neither text nor stored."""
        self.notes.append(event)
        self.wake()

    def next(self, at: int) -> None:
        """Begin the draft of the message after one that was stored."""
        with self.lock:
            self.draft, self.moved = Draft(at), self.moved + 1
        self.wake()

    def show(self, at: int, content: str, reasoning: str) -> None:
        """Take over the draft of a turn that runs in another process."""
        with self.lock:
            draft = self.draft
            if at != draft.at or not content.startswith("".join(draft.content)):
                draft, self.moved = Draft(at), self.moved + 1
                self.draft = draft
        for pieces, text in ((draft.content, content), (draft.reasoning, reasoning)):
            if more := text[sum(map(len, pieces)) :]:
                pieces.append(more)
                self.wake()

    def touch(self) -> None:
        """Tell that there may be new rows."""
        with self.lock:
            self.moved += 1
        self.wake()

    def wake(self) -> None:
        """Wake every watcher."""
        for wake in tuple(self.watchers):
            wake()


class Topics:
    """The topics of this process; one that nobody needs is gone."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: a forked child has neither its parent's turns nor its watchers."""
        self.lock = threading.Lock()
        self.open: dict[Key, Topic] = {}

    def watch(self, key: Key, wake: Callable[[], object]) -> Topic:
        """Be woken from now on."""
        with self.lock:
            topic = self._topic(key)
            topic.watchers.add(wake)
            return topic

    def leave(self, key: Key, wake: Callable[[], object]) -> bool:
        """Be woken no more; whether nobody watches now."""
        with self.lock:
            topic = self.open.get(key)
            if topic is None:
                return True
            topic.watchers.discard(wake)
            self._drop(key, topic)
            return not topic.watchers

    def publish(self, key: Key, at: int) -> Topic:
        """Take the topic for a turn that runs here."""
        with self.lock:
            topic = self._topic(key)
            topic.publishers += 1
        topic.next(at)
        return topic

    def finish(self, key: Key) -> None:
        """Give the topic back: the turn has ended, and its rows say how."""
        with self.lock:
            topic = self.open[key]
            topic.publishers -= 1
            self._drop(key, topic)
        topic.touch()

    def watched(self) -> dict[Key, Topic]:
        """Give what somebody watches."""
        with self.lock:
            return {key: topic for key, topic in self.open.items() if topic.watchers}

    def _topic(self, key: Key) -> Topic:
        # Heard only while there is a topic: a signal without receivers costs a message nothing.
        signals.message_saved.connect(_saved, dispatch_uid=__name__)
        return self.open.setdefault(key, Topic())

    def _drop(self, key: Key, topic: Topic) -> None:
        if not topic.watchers and not topic.publishers:
            self.open.pop(key, None)
        if not self.open:
            signals.message_saved.disconnect(dispatch_uid=__name__)


topics = Topics()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=topics.reset)


class Publisher:
    """The `on_event` of a turn that runs here: what it says goes to those who watch.

    `keep` gets the draft now and then, for the watchers of other processes.
    """

    def __init__(self, key: Key, at: int, keep: Callable[[Draft], object] | None = None) -> None:
        self.key, self.keep = key, keep
        self.topic = topics.publish(key, at)

    def __call__(self, type: str, payload: dict[str, Any]) -> None:
        if type in (events.CONTENT, events.REASONING):
            self.topic.say(type, payload["text"])
            if self.keep is not None:
                self.keep(self.topic.draft)
        elif names := NOTED.get(type):
            self.topic.note(Event(type, {name: payload.get(name) for name in names}))
        else:
            self.topic.touch()

    def close(self) -> None:
        """Tell that the turn has ended."""
        topics.finish(self.key)


def _saved(sender: Any, message: Any, **details: Any) -> None:
    """End the draft that became this message; what a tool says is no draft's end."""
    topic = topics.open.get((message._state.db, message.chat_id))
    if topic is None:
        return
    if message.role in (TOOL, SYSTEM):
        topic.touch()
    else:
        topic.next(message.position + 1)
