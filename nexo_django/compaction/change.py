"""What a compaction changed, told so that any store can keep the originals and build the view."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

from nexo_django.messages import NORMAL, SYSTEM, TOOL, USER, Message, Usage


@dataclass(frozen=True)
class Spent:
    """What an attempt to compact used that changed nothing; `error` names why, a class."""

    trigger: str
    error: str
    target: int
    usage: Usage
    seconds: float = 0.0


@dataclass(frozen=True)
class Change:
    """One compaction: the view before and after it, and how it came about.

    `before` and `view` hold the system message too, first, when there is one. Counts are of
    the messages without the tools' schemas; `context` was the whole request. Nothing here is
    stored yet: messages that are new have no position.
    """

    before: tuple[Message, ...] = field(repr=False)
    view: tuple[Message, ...] = field(repr=False)
    trigger: str
    layers: tuple[str, ...]
    context: int
    tokens_before: int
    tokens_after: int
    target: int
    reached: bool
    floor: int
    usage: Usage
    seconds: float = 0.0

    @cached_property
    def sources(self) -> tuple[int | None, ...]:
        """For each message of the view its index in `before`, None for a new one."""
        found: list[int | None] = []
        start = 0
        places = {id(message): index for index, message in enumerate(self.before)}
        for message in self.view:
            index = places.get(id(message))
            if index is None:
                index = self._rewritten(message, start)
            if index is not None:
                start = index + 1
            found.append(index)
        return tuple(found)

    @cached_property
    def removed(self) -> tuple[Message, ...]:
        """The messages that are no longer in the view, rewritten ones not among them."""
        kept = set(self.sources)
        return tuple(m for i, m in enumerate(self.before) if i not in kept)

    @cached_property
    def rewritten(self) -> tuple[tuple[Message, Message], ...]:
        """Each message that is shown with another text, and what is shown for it."""
        pairs = zip(self.sources, self.view, strict=True)
        return tuple(
            (self.before[i], new) for i, new in pairs if i is not None and self.before[i] != new
        )

    @cached_property
    def added(self) -> tuple[Message, ...]:
        """The new messages: a summary, a note."""
        pairs = zip(self.sources, self.view, strict=True)
        return tuple(message for index, message in pairs if index is None)

    @cached_property
    def front(self) -> tuple[Message, ...]:
        """The summary or note, new or kept, that the view begins with behind the system."""
        shown = [message for message in self.view if message.role != SYSTEM]
        return tuple(takewhile(lambda message: message.kind != NORMAL, shown))

    @cached_property
    def rows(self) -> tuple[Message, ...]:
        """What the view shows behind its front."""
        shown = [message for message in self.view if message.role != SYSTEM]
        return tuple(shown[len(self.front) :])

    @property
    def first_kept_position(self) -> int | None:
        """The position of the first row that is shown: the boundary. None without positions."""
        return self.rows[0].position if self.rows else None

    @cached_property
    def rewrites(self) -> dict[int, Message | None]:
        """What is shown in place of the rows from the boundary on; None leaves a row out."""
        first, shown = self.first_kept_position, {m.position for m in self.rows}
        found: dict[int, Message | None] = {
            old.position: new for old, new in self.rewritten if old.position is not None
        }
        rows = (m.position for m in self.before if m.role != SYSTEM and m.position is not None)
        left_out = (p for p in rows if first is not None and p >= first and p not in shown)
        return {**found, **dict.fromkeys(left_out)}

    @property
    def upto_position(self) -> int | None:
        """The position of the last message that the compaction has seen."""
        return self.before[-1].position if self.before else None

    def _rewritten(self, message: Message, start: int) -> int | None:
        """Find what a message stands for: the next result of its call, or the same prompt."""
        stands = {TOOL: _same_call, USER: _same_prompt}.get(message.role)
        if stands is None:
            return None
        indexes = range(start, len(self.before))
        return next((i for i in indexes if stands(self.before[i], message)), None)


def _same_call(old: Message, new: Message) -> bool:
    return old.role == TOOL and old.tool_call_id == new.tool_call_id


def _same_prompt(old: Message, new: Message) -> bool:
    """Whether a prompt is shown without the files that came with it."""
    said = (old.role, old.kind, old.content, old.position)
    same = said == (new.role, new.kind, new.content, new.position)
    return same and bool(old.parts and new.parts) and len(old.parts or ()) == len(new.parts or ())
