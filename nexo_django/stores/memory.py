"""Sessions in the process's memory: for code without a database; nothing survives the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from nexo_django.exceptions import SessionBusy
from nexo_django.messages import Message
from nexo_django.stores.attached import HeldAttachments
from nexo_django.stores.base import RUNNING
from nexo_django.stores.contents import Contents, Turn, counted
from nexo_django.stores.files import HeldFiles
from nexo_django.stores.local import LocalChat, missing
from nexo_django.stores.local_decisions import HeldDecisions, Wait
from nexo_django.stores.outputs import HeldOutputs
from nexo_django.stores.parts import Part

RETRY_AFTER = 1.0


@dataclass
class Room:
    """One chat: its contents, who owns it, and what compaction took out of the view."""

    contents: Contents = field(default_factory=Contents)
    owner: object | None = None
    cancelled: int | None = None
    # The parts before the one that the contents are of.
    earlier: list[Part] = field(default_factory=list)
    made: int = 0
    parent: int | None = None
    outputs: HeldOutputs = field(default_factory=HeldOutputs)
    attached: HeldAttachments = field(default_factory=HeldAttachments)
    files: HeldFiles = field(default_factory=HeldFiles)
    decisions: HeldDecisions = field(default_factory=lambda: HeldDecisions(MemoryStore.changed))

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""
        return [*self.earlier, Part(list(self.contents.messages), self.made, self.parent)]


class MemoryStore:
    """The one store of the process; each instance gives the same chats.

    Threads may share it. It is not durable, and a forked process has a copy of its own.
    """

    durable = False
    rooms: ClassVar[dict[tuple[str, str], Room]] = {}
    # Re-entrant: a turn that is collected while the lock is held gives its lease back.
    changed: ClassVar[threading.Condition] = threading.Condition(threading.RLock())

    def chat(self, agent_name: str, instance_id: str) -> MemoryChat:
        """Give the handle of a chat."""
        return MemoryChat(agent_name, instance_id)

    def purge_outputs(self, now: datetime, batch_size: int) -> int:
        """Delete the outputs of tools that expired by then, and count them."""
        with self.changed:
            return sum(room.outputs.purge(now.timestamp()) for room in self.rooms.values())

    @classmethod
    def reset(cls) -> None:
        """Forget every chat; for tests. Turns under way lose their lease."""
        with cls.changed:
            for room in cls.rooms.values():
                room.owner = None
            cls.rooms.clear()
            cls.changed.notify_all()


class MemoryChat(LocalChat):
    """The chat of one agent and instance, in memory."""

    def __init__(self, agent_name: str, instance_id: str) -> None:
        self.name = (agent_name, instance_id)

    def hold(self, wait: float, *, make: bool) -> MemoryHold:
        """Take the lease, or raise SessionBusy after `wait` seconds."""
        until = time.monotonic() + wait
        with MemoryStore.changed:
            while True:
                room = self._room()
                if room is None and not make:
                    raise missing(*self.name)
                if room is None or room.owner is None:
                    break
                left = until - time.monotonic()
                if left <= 0:
                    raise SessionBusy(
                        "Another turn of this session is running.", retry_after=RETRY_AFTER
                    )
                MemoryStore.changed.wait(left)
            return MemoryHold(MemoryStore.rooms.setdefault(self.name, room or Room()))

    def read(self) -> Contents:
        """Give what is stored now."""
        with MemoryStore.changed:
            room = self._room()
            if room is None:
                return Contents()
            kept = room.contents
            return Contents(
                list(kept.messages), list(kept.turns), kept.system, slots=list(kept.slots)
            )

    def exists(self) -> bool:
        """Whether the chat is stored."""
        return self._room() is not None

    @property
    def decisions(self) -> HeldDecisions:
        """Where decisions on the chat's calls are kept."""
        return (self._room() or Room()).decisions

    @property
    def files(self) -> HeldAttachments:
        """Where the chat's attached files are kept."""
        return (self._room() or Room()).attached

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""
        with MemoryStore.changed:
            return (self._room() or Room()).parts()

    def history(self) -> Iterator[Message]:
        """Give every message that was kept, compacted ones too, in order."""
        system = self.read().system
        return iter([*([] if system is None else [system]), *super().history()])

    def cancel(self) -> bool:
        """Ask the running turn to stop; False when none runs."""
        with MemoryStore.changed:
            room = self._room()
            last = room.contents.turns[-1] if room and room.contents.turns else None
            if room is None or room.owner is None or last is None or last.status != RUNNING:
                return False
            room.cancelled = last.number
            return True

    def delete(self) -> dict[str, int]:
        """Delete the chat and count what went."""
        with MemoryStore.changed:
            room = self._room()
            if room is None:
                return {}
            if room.owner is not None:
                raise SessionBusy("A turn of this session is running.", retry_after=RETRY_AFTER)
            messages = list(self.history())
            del MemoryStore.rooms[self.name]
        return counted(messages, len(room.contents.turns))

    def _room(self) -> Room | None:
        return MemoryStore.rooms.get(self.name)


class MemoryHold:
    """The lease of a chat in memory; what is committed is what the contents hold."""

    def __init__(self, room: Room) -> None:
        self.room, self.contents, self.lock = room, room.contents, MemoryStore.changed
        self.outputs, self.attached = room.outputs, room.attached
        self.files = room.files
        self.decisions = room.decisions
        room.owner, room.cancelled = self, None

    def owned(self) -> bool:
        """Whether the lease is still held."""
        return self.room.owner is self

    def begin(self, turn: Turn, prompts: list[Message]) -> None:
        """Nothing to write: the contents are the store."""

    def message(self, message: Message) -> None:
        """Nothing to write."""

    def turn(self, turn: Turn) -> None:
        """Nothing to write."""

    def started(self, turn: Turn, call: tuple[str, int]) -> None:
        """Nothing to write."""

    def cancelled(self, number: int) -> bool:
        """Whether that turn was asked to stop."""
        return self.room.cancelled == number

    @property
    def made(self) -> int:
        """How many of the messages a compaction left, or its undoing brought back."""
        return self.room.made

    @property
    def index(self) -> int:
        """Which of the parts the contents are of."""
        return len(self.room.earlier)

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""
        return self.room.parts()

    def replace(
        self, part: Part, marks: set[tuple[str, int]], waits: dict[tuple[str, int], Wait]
    ) -> None:
        """Keep the part before for the history."""
        self.room.earlier, self.room.made = self.room.parts(), part.made
        self.room.parent = part.parent

    def release(self) -> None:
        """Give the lease back."""
        with MemoryStore.changed:
            if self.owned():
                self.room.owner = None
                MemoryStore.changed.notify_all()
