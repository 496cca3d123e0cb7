"""Reading a chat's rows as messages: the view, and the whole history in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from nexo_django.messages import SYSTEM, USER, Message
from nexo_django.models.querysets import fronts, outside
from nexo_django.models.values import message_value

BATCH = 500


@dataclass
class Rows:
    """Messages of a chat in order, with their calls; changed only by who loaded them."""

    messages: list[Any] = field(default_factory=list)
    calls: dict[int, list[Any]] = field(default_factory=dict)
    # The ids of calls by their rows' keys, for the results that answer them.
    ids: dict[int, str] = field(default_factory=dict)
    rewrites: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary_id: int | None = None

    def values(self) -> list[Message]:
        """Give the messages as values, with what compaction rewrote."""
        return [self._rewritten(row) or self.value(row) for row in self.messages]

    def add(self, stored: list[Any]) -> None:
        """Add results that were just stored."""
        self.ids.update({row.answers_id: row.answers.value().id for row in stored})
        self.messages = self._ordered([*self.messages, *stored])

    def value(self, row: Any) -> Message:
        """Give one of the rows as a value."""
        calls = [call.value() for call in self.calls.get(row.pk, ())]
        return message_value(row, calls, self.ids.get(row.answers_id))

    def _ordered(self, rows: list[Any]) -> list[Any]:
        # The summary stands for what came before the rows, wherever it was stored.
        return sorted(rows, key=lambda r: (r.position != 0, r.pk != self.summary_id, r.position))

    def _rewritten(self, row: Any) -> Message | None:
        shown = self.rewrites.get(str(row.position))
        return None if shown is None else Message.from_dict(shown).replace(position=row.position)


def view(chat: Any, messages: Any) -> Rows:
    """Load what the model sees of a chat, in a few queries whatever the length of its history.

    `chat` has its current compaction loaded; `messages` is the queryset to read from.
    """
    return _shown(chat, messages, chat.current_compaction)


def view_as_of(chat: Any, messages: Any, position: int) -> Rows:
    """Load what the model saw when that was the last position."""
    made = chat.compactions.using(messages.db).filter(upto_position__lte=position)
    in_force = Q(undone_position__isnull=True) | Q(undone_position__gt=position)
    then = made.filter(in_force).select_related("summary").order_by("-version").first()
    return _shown(chat, messages, then, position)


def _shown(chat: Any, messages: Any, compaction: Any, as_of: int | None = None) -> Rows:
    rows = messages.filter(messages.behind(chat, compaction), chat=chat).order_by("position")
    if as_of is not None:
        rows = rows.filter(position__lte=as_of)
    if compaction is None:
        return _rows(list(rows), messages)
    places = [int(place) for place in compaction.rewrites or ()]
    # Asked apart: in one query with the rows, SQLite would look at the whole history.
    found = list(messages.filter(chat=chat, position__in=fronts(compaction)))
    found += rows.exclude(position__in=[*fronts(compaction), *places])
    if places:
        # What they said is not read: it may be large, and something else is shown for it.
        found += rows.filter(position__in=places).only("chat", "position", "role", "answers")
    found.sort(key=lambda row: row.position)
    shown = _rows(found, messages, left_out=compaction)
    shown.rewrites, shown.summary_id = compaction.rewrites or {}, compaction.summary_id
    shown.messages = shown._ordered(shown.messages)
    return shown


def history(chat_id: int, messages: Any) -> Iterator[Message]:
    """Give every message of a chat in order, some hundreds a query.

    No cursor stays open between two of them, so it may be left or be slow.
    """
    after, ids = -1, dict[int, str]()
    while True:
        rows = messages.filter(chat=chat_id, position__gt=after).order_by("position")
        batch = _rows(list(rows[:BATCH]), messages, ids)
        yield from (batch.value(row) for row in batch.messages)
        if len(batch.messages) < BATCH:
            return
        after, ids = batch.messages[-1].position, batch.ids


def _rows(
    found: list[Any], messages: Any, known: dict[int, str] | None = None, left_out: Any = None
) -> Rows:
    rows = Rows(found, ids=known or {})
    asking = [row.position for row in found if row.role not in (SYSTEM, USER)]
    if not asking:
        return rows
    table = messages.model._meta.get_field("tool_calls").related_model
    calls = table._base_manager.using(messages.db)
    span = (asking[0], asking[-1])
    within = calls.filter(
        outside(left_out, "message__position"),
        message__chat=found[0].chat_id,
        message__position__range=span,
    )
    for call in within.order_by("message_id", "index"):
        rows.calls.setdefault(call.message_id, []).append(call)
        rows.ids[call.pk] = call.value().id
    missing = {row.answers_id for row in found} - {None, *rows.ids}
    if missing:
        rows.ids.update({c.pk: c.value().id for c in calls.filter(pk__in=missing)})
    return rows
