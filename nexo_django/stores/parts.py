"""A log in parts: a compaction begins a new one with what it left of the one before.

Nothing is ever taken out of an earlier part, so that each tells what the model saw then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nexo_django.messages import SUMMARY, Message
from nexo_django.stores.contents import Contents


@dataclass(frozen=True)
class Part:
    """The messages of the view from one compaction to the next.

    The first `made` are what a compaction left, or what its undoing brought back. `parent` is
    the index of the part that undoing goes back to, None where there is nothing to undo.
    """

    messages: list[Message] = field(default_factory=list)
    made: int = 0
    parent: int | None = None

    @property
    def own(self) -> list[Message]:
        """The messages that were added in this part."""
        return self.messages[self.made :]


def history(parts: Sequence[Part]) -> list[Message]:
    """Give every message once, summaries too, in order and with its position."""
    contents = Contents()
    for part in parts:
        _put_new(contents, part)
        contents.add(part.own)
    return contents.messages


def as_of(parts: Sequence[Part], position: int) -> list[Message]:
    """Give the view when that was the last position in the history."""
    contents, last, then = Contents(), 0, list[Message]()
    for part in parts:
        _put_new(contents, part)
        known = last <= position
        own = [contents.put(message) for message in part.own]
        if known:
            then = part.messages[: part.made]
            then += [m for m in own if (m.position or 0) <= position]
        last = max([last, *(m.position or 0 for m in own)])
    return then


def undone(parts: Sequence[Part]) -> Part | None:
    """Give the part that undoes the last compaction, None when there is none.

    It has what the view was before, and what was added since.
    """
    parent = parts[-1].parent
    if parent is None:
        return None
    newer = [message for part in parts[parent + 1 :] for message in part.own]
    messages = [*parts[parent].messages, *newer]
    return Part(messages, len(messages), parts[parent].parent)


def _put_new(contents: Contents, part: Part) -> None:
    """Take in the summaries that a compaction wrote; the rest of what it left was there."""
    for message in part.messages[: part.made]:
        if message.kind == SUMMARY and message not in contents.messages:
            # Calls may be open meanwhile: their results keep their places.
            slots = contents.slots
            contents.put(message)
            contents.slots = slots
