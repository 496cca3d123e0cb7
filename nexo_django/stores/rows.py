"""Reading a chat's rows as messages: the view, and the whole history in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.db.models import F, Q, TextField, Value

from nexo_django.messages import SYSTEM, USER, Message
from nexo_django.models.compiled import select
from nexo_django.models.querysets import fronts, outside
from nexo_django.models.values import message_value

BATCH = 500


class Stored(NamedTuple):
    """What a view needs of a message's row; much cheaper than an instance of the model."""

    pk: int
    position: int
    role: str
    kind: str
    status: str
    parts: Any
    reasoning: Any
    answers_id: int | None
    is_error: bool
    model_name: str
    finish_reason: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost: Any
    raw_usage: Any
    token_count: int
    token_ruler: str
    extra: Any
    content: str | None


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
    chats = messages.model._meta.get_field("chat").related_model
    made = chats._meta.get_field("compactions").related_model._base_manager.using(messages.db)
    made = made.filter(chat=chat.pk).exclude(status="failed")
    made = made.filter(upto_position__lte=position)
    in_force = Q(undone_position__isnull=True) | Q(undone_position__gt=position)
    then = made.filter(in_force).select_related("summary").order_by("-version").first()
    return _shown(chat, messages, then, position)


def _shown(chat: Any, messages: Any, compaction: Any, as_of: int | None = None) -> Rows:
    values = {"chat": chat.pk} if as_of is None else {"chat": chat.pk, "as_of": as_of}
    if compaction is None:
        found = select(_whole, messages.db, messages.model, **values)
        return _rows(chat.pk, [Stored._make(row) for row in found], messages)
    left_out, rewrites = compaction.left_out or [], compaction.rewrites or {}
    values |= {"first": compaction.first_kept_position, **_bounds(left_out)}
    values |= {f"place{n}": int(place) for n, place in enumerate(rewrites)}
    if compaction.summary is not None:
        values["summary"] = compaction.summary.position
    found = select(_view, messages.db, messages.model, len(left_out), len(rewrites), **values)
    stored = sorted(map(Stored._make, found), key=lambda row: row.position)
    shown = _rows(chat.pk, stored, messages, left_out)
    shown.rewrites, shown.summary_id = rewrites, compaction.summary_id
    shown.messages = shown._ordered(shown.messages)
    return shown


def _whole(alias: str, model: Any, **slots: Any) -> Any:
    return _columns(_kept(alias, model, None, slots).order_by("position"), F("content"))


def _view(alias: str, model: Any, left_out: int, rewrites: int, **slots: Any) -> Any:
    """Make the query of a compacted view: of so many ranges left out and rows rewritten."""
    summary = slots.get("summary")
    compaction = SimpleNamespace(
        first_kept_position=slots["first"],
        left_out=_ranges(left_out, slots),
        summary=None if summary is None else SimpleNamespace(position=summary),
    )
    front = fronts(compaction)  # type: ignore[arg-type]
    places = [slots[f"place{n}"] for n in range(rewrites)]
    kept = _kept(alias, model, compaction, slots)
    parts = [_columns(kept.exclude(position__in=[*front, *places]), F("content"))]
    if places:
        # What they said is not read: it may be large, and something else is shown for it.
        unread = Value(None, output_field=TextField())
        parts.append(_columns(kept.filter(position__in=places), unread))
    # Apart from the rows, or SQLite would look at the whole history.
    heads = model.objects.using(alias).filter(chat=slots["chat"], position__in=front)
    return _columns(heads.order_by(), F("content")).union(*parts, all=True).order_by()


def _kept(alias: str, model: Any, compaction: Any, slots: dict[str, Any]) -> Any:
    messages = model.objects.using(alias).order_by()
    kept = messages.filter(messages.behind(slots["chat"], compaction), chat=slots["chat"])
    return kept.filter(position__lte=slots["as_of"]) if "as_of" in slots else kept


def _columns(rows: Any, said: Any) -> Any:
    return rows.annotate(said=said).values_list(*Stored._fields[:-1], "said")


def _calls(alias: str, model: Any, left_out: int, **slots: Any) -> Any:
    compaction: Any = SimpleNamespace(left_out=_ranges(left_out, slots))
    calls = model._base_manager.using(alias).filter(
        outside(compaction, "message__position"),
        message__chat=slots["chat"],
        message__position__range=(slots["begin"], slots["end"]),
    )
    return calls.order_by("message_id", "index")


def _bounds(ranges: list[list[int]]) -> dict[str, int]:
    bounds: dict[str, int] = {}
    for n, (first, last) in enumerate(ranges):
        bounds |= {f"from{n}": first, f"to{n}": last}
    return bounds


def _ranges(count: int, slots: dict[str, Any]) -> list[Any]:
    return [(slots[f"from{n}"], slots[f"to{n}"]) for n in range(count)]


def history(chat_id: int, messages: Any) -> Iterator[Message]:
    """Give every message of a chat in order, some hundreds a query.

    No cursor stays open between two of them, so it may be left or be slow.
    """
    after, ids = -1, dict[int, str]()
    while True:
        rows = messages.filter(chat=chat_id, position__gt=after).order_by("position")
        batch = _rows(chat_id, list(rows[:BATCH]), messages, known=ids)
        yield from (batch.value(row) for row in batch.messages)
        if len(batch.messages) < BATCH:
            return
        after, ids = batch.messages[-1].position, batch.ids


def _rows(
    chat_id: int,
    found: list[Any],
    messages: Any,
    left_out: list[list[int]] | None = None,
    known: dict[int, str] | None = None,
) -> Rows:
    rows, left_out = Rows(found, ids=known or {}), left_out or []
    asking = [row.position for row in found if row.role not in (SYSTEM, USER)]
    if not asking:
        return rows
    table = messages.model._meta.get_field("tool_calls").related_model
    span = {"begin": asking[0], "end": asking[-1], **_bounds(left_out)}
    calls = select(_calls, messages.db, table, len(left_out), chat=chat_id, **span)
    positions = {row.pk: row.position for row in found} if calls else {}
    for call in calls:
        if (position := positions.get(call.message_id)) is not None:
            call.place = position + 1 + call.index
        rows.calls.setdefault(call.message_id, []).append(call)
        rows.ids[call.pk] = call.value().id
    missing = {row.answers_id for row in found} - {None, *rows.ids}
    if missing:
        others = table._base_manager.using(messages.db).filter(pk__in=missing)
        rows.ids.update({call.pk: call.value().id for call in others})
    return rows
