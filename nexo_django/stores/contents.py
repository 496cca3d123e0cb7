"""What the stores without a database hold of a chat: its messages in place, and its turns."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from nexo_django.messages import ASSISTANT, COMPLETE, TOOL, Message, ToolCall, Usage
from nexo_django.stores.base import RUNNING
from nexo_django.stores.local_decisions import Wait
from nexo_django.transcript import last_prompt, repaired


@dataclass
class Turn:
    """A turn as it is stored; `started` holds ids and positions of calls that began to run.

    `waits` tells of those that were asked about, by the same.
    """

    number: int
    key: str | None = None
    fingerprint: str = ""
    status: str = RUNNING
    error: str = ""
    usage: Usage = field(default_factory=Usage)
    reply: Message | None = None
    started: set[tuple[str, int]] = field(default_factory=set)
    waits: dict[tuple[str, int], Wait] = field(default_factory=dict)


@dataclass
class Contents:
    """What is stored of a chat, in order.

    An assistant message reserves the positions after it for its results, so that parallel
    results are in call order whoever finishes first; `slots` are those still free. `start` is
    where the last turn's messages begin, None where a compaction left that unknown. `void` is
    the number of a turn whose owner died before its prompt was stored.
    """

    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    system: Message | None = None
    next: int = 1
    slots: list[tuple[ToolCall, int]] = field(default_factory=list)
    start: int | None = None
    void: int | None = None

    def add(self, messages: Iterable[Message]) -> None:
        """Take in messages that are stored, in the order in which they were written."""
        for message in messages:
            self.put(message)

    def put(self, message: Message) -> Message:
        """Take in a message that is stored, and give it with its position."""
        placed = self.place(message)
        self.take(placed)
        return placed

    def place(self, message: Message) -> Message:
        """Give the message with the position it would have; changes nothing."""
        slot = self._slot(message)
        return message.replace(position=self.next if slot is None else slot[1])

    def take(self, message: Message) -> None:
        """Add a placed message."""
        slot = self._slot(message)
        insort(self.messages, message, key=lambda m: m.position or 0)
        if slot is not None:
            self.slots.remove(slot)
            return
        self.next += 1
        if message.role != TOOL:
            self.slots = [(c, self.next + i) for i, c in enumerate(message.calls)]
            self.next += len(self.slots)

    def replace(self, messages: Iterable[Message]) -> None:
        """Put these messages in place of all."""
        self.messages, self.next, self.slots, self.start = [], 1, [], None
        self.add(messages)

    def answered(self, call_id: str | None) -> bool:
        """Whether the last step has a result for every call of that id."""
        step = next((m for m in reversed(self.messages) if m.role != TOOL), None)
        asked = step is not None and any(call.id == call_id for call in step.calls)
        return asked and not any(call.id == call_id for call, _ in self.slots)

    def view(self, *, keep_open: bool = False) -> list[Message]:
        """Give the messages that the model would see."""
        front = [] if self.system is None else [self.system]
        return repaired([*front, *self.messages], keep_open=keep_open)

    def turn(self, key: str | None) -> Turn | None:
        """Give the turn of a key."""
        return next((t for t in self.turns if key is not None and t.key == key), None)

    def ended(self) -> bool:
        """Whether the messages end with an answer, which settles the last turn."""
        last = self.messages[-1] if self.messages else None
        return last is not None and settles(last)

    def answer(self) -> Message | None:
        """Give the model's last message in the last turn."""
        return next((m for m in reversed(self._last()) if m.role == ASSISTANT), None)

    def spent(self) -> Usage:
        """Give what the last turn's model calls used."""
        return total(self._last())

    def _last(self) -> list[Message]:
        if self.start is not None:
            return [m for m in self.messages if (m.position or 0) >= self.start]
        prompt = last_prompt(self.messages)
        return [] if prompt is None else self.messages[prompt:]

    def _slot(self, message: Message) -> tuple[ToolCall, int] | None:
        if message.role != TOOL:
            return None
        return next((slot for slot in self.slots if slot[0].id == message.tool_call_id), None)


def settles(message: Message) -> bool:
    """Whether the message is an answer that its turn ends with."""
    return message.role == ASSISTANT and not message.calls and message.status == COMPLETE


def total(messages: Iterable[Message]) -> Usage:
    """Sum what messages used."""
    return sum((m.usage for m in messages if m.usage is not None), Usage())


def counted(messages: list[Message], turns: int) -> dict[str, int]:
    """Count what a chat held, by kind."""
    calls = sum(len(m.calls) for m in messages)
    return {"chats": 1, "turns": turns, "messages": len(messages), "tool_calls": calls}
