"""One page of a chat as a conversation, in a fixed number of queries and bounded bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Left, Length

from nexo_django.admin.display import ENTRY, note, pretty
from nexo_django.models import Chat, Message, ToolCall, Turn
from nexo_django.stores.base import DONE, RUNNING

PER_PAGE = 50
WELL = (DONE, RUNNING)


@dataclass(frozen=True)
class Text:
    """A text as it is shown, and what is left out of it."""

    shown: str
    note: str

    @classmethod
    def of(cls, text: str | None, length: int | None = None) -> Text | None:
        """Cap a text; None when there is none."""
        if not text:
            return None
        shown = text[:ENTRY]
        return cls(shown, note(len(shown), len(text) if length is None else length))


@dataclass(frozen=True)
class Call:
    """A tool call of an entry."""

    row: ToolCall
    arguments: Text | None

    @property
    def summary(self) -> str:
        """The beginning of the arguments, for the folded line."""
        text = "" if self.arguments is None else " ".join(self.arguments.shown.split())
        return text if len(text) <= 80 else f"{text[:79]}…"


@dataclass(frozen=True)
class Entry:
    """A message of the conversation.

    `ending` is its turn if that ended here, and not well; `begins_view` is True where what
    the model sees begins.
    """

    row: Message
    text: Text | None
    parts: Text | None
    reasoning: Text | None
    calls: list[Call]
    ending: Turn | None
    begins_view: bool


@dataclass(frozen=True)
class Transcript:
    """A page of entries; `before` and `after` are where the neighbouring pages are, if any."""

    entries: list[Entry]
    before: int | None
    after: int | None


def transcript(chat: Chat, before: int | None = None, after: int | None = None) -> Transcript:
    """Give the page before or after a position, or the last one."""
    rows = _rows(chat)
    if after is not None:
        found = list(rows.filter(position__gt=after).order_by("position")[: PER_PAGE + 1])
        shown, later = found[:PER_PAGE], len(found) > PER_PAGE
        earlier = bool(shown) and rows.filter(position__lt=shown[0].position).exists()
    else:
        if before is not None:
            rows = rows.filter(position__lt=before)
        found = list(rows.order_by("-position")[: PER_PAGE + 1])
        shown, earlier = found[:PER_PAGE][::-1], len(found) > PER_PAGE
        later = before is not None
    return Transcript(
        _entries(shown, later, chat.current_compaction),
        shown[0].position if shown and earlier else None,
        shown[-1].position if shown and later else None,
    )


def _rows(chat: Chat) -> QuerySet[Any]:
    rows: QuerySet[Any] = (
        Message._default_manager.filter(chat=chat)
        .select_related("answers", "turn")
        .prefetch_related("tool_calls")
        .annotate(beginning=Left("content", ENTRY), length=Length("content"))
        .defer("content", "raw_usage")
    )
    return rows


def _entries(rows: list[Any], later: bool, compaction: Any) -> list[Entry]:
    # Where the page ends, only the next one knows whether the turn goes on.
    following = [*(row.turn_id for row in rows[1:]), rows[-1].turn_id if rows and later else None]
    first = None if compaction is None else compaction.first_kept_position
    seen = first is not None and next((row for row in rows if row.position >= first), None)
    begins = seen if seen and (seen.position == first or seen is not rows[0]) else None
    return [
        _entry(row, row.turn_id != turn, row is begins)
        for row, turn in zip(rows, following, strict=False)
    ]


def _entry(row: Any, last_of_turn: bool, begins_view: bool) -> Entry:
    calls = [
        Call(call, Text.of(call.raw_arguments or pretty(call.arguments)))
        for call in row.tool_calls.all()
    ]
    return Entry(
        row,
        Text.of(row.beginning, row.length),
        Text.of(pretty(row.parts)),
        Text.of(pretty(row.reasoning)),
        calls,
        row.turn if last_of_turn and row.turn and row.turn.status not in WELL else None,
        begins_view,
    )
