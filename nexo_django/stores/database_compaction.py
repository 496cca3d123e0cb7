"""Compaction in the database: a row that moves the boundary; what was said stays as it was."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Max, OuterRef, Subquery

from nexo_django.compaction.change import Change, Spent
from nexo_django.leases import Lease
from nexo_django.messages import NORMAL, SUMMARY, SYSTEM, USER, Message
from nexo_django.models import Tables, usage
from nexo_django.models.compaction import CompactionStatus
from nexo_django.sanitize import clean_message

if TYPE_CHECKING:
    from nexo_django.stores.database_turn import DatabaseTurn


@dataclass(frozen=True)
class Plan:
    """What a compaction's row is to say.

    `front` is what stands for the earlier rows: a new message, or with `keeps` the one that
    stood there before. There is one at most: what a compactor adds beside it, or elsewhere,
    is joined to it.
    """

    front: Message | None
    keeps: bool
    first: int
    upto: int
    left_out: list[list[int]]
    rewrites: dict[str, Any] = field(default_factory=dict)


def store(turn: DatabaseTurn, change: Change) -> int:
    """Store a compaction and what stands for the earlier rows, inside `writing`.

    Gives the position of the last message that it has seen.
    """
    turn.fence()
    chats = turn.tables.chat.objects.using(turn.alias)
    chat = chats.select_related("current_compaction__summary").get(pk=turn.row.chat_id)
    parent = chat.current_compaction
    plan = planned(change, parent)
    summary = parent.summary if plan.keeps else None
    if plan.front is not None:
        summary = _front(turn, plan.front, change)
    made = turn.tables.compaction(
        chat_id=chat.pk,
        version=_last_version(chat, turn.alias) + 1,
        parent=parent,
        first_kept_position=plan.first,
        upto_position=plan.upto,
        summary=summary,
        rewrites=plan.rewrites,
        left_out=plan.left_out,
        layers=list(change.layers),
        trigger=change.trigger[:20],
        tokens_before=change.tokens_before,
        tokens_after=change.tokens_after,
        tokens_target=change.target,
        reached=change.reached,
        usage=change.usage.to_dict(),
        duration=timedelta(seconds=change.seconds),
        status=CompactionStatus.DONE,
    )
    made.save(using=turn.alias, force_insert=True)
    spent = {} if plan.front is not None else usage.moves(usage.columns(change.usage))
    turn.fence(current_compaction=made, **spent)
    return plan.upto


def store_failed(turn: DatabaseTurn, spent: Spent) -> None:
    """Store what an attempt used that changed nothing, inside `writing`."""
    turn.fence(**usage.moves(usage.columns(spent.usage)))
    chat = turn.tables.chat.objects.using(turn.alias).get(pk=turn.row.chat_id)
    made = turn.tables.compaction(
        chat_id=chat.pk,
        version=_last_version(chat, turn.alias) + 1,
        trigger=spent.trigger[:20],
        tokens_target=spent.target,
        usage=spent.usage.to_dict(),
        duration=timedelta(seconds=spent.seconds),
        status=CompactionStatus.FAILED,
        error=spent.error[:100],
    )
    made.save(using=turn.alias, force_insert=True)


def undo(tables: Tables, alias: str, chat_id: int) -> bool:
    """Go back to the parent of the chat's compaction, unless a turn runs or ran meanwhile."""
    chats = tables.chat.objects.using(alias).select_related("current_compaction")
    chat = chats.filter(pk=chat_id).first()
    current = None if chat is None else chat.current_compaction
    if current is None:
        return False
    lease = Lease(tables.chat, alias, chat.pk)
    with transaction.atomic(using=alias):
        if not lease.claim({"current_compaction": current}, current_compaction=current.parent_id):
            return False
        messages = tables.message.objects.using(alias)
        said = messages.filter(messages.said(chat), chat=chat).aggregate(last=Max("position"))
        current.status = CompactionStatus.UNDONE
        current.undone_position = said["last"] or 0
        current.save(using=alias, update_fields=["status", "undone_position"])
        lease.release()
    return True


def last_undone(tables: Tables, alias: str) -> Any:
    """Give the last position of a chat when a compaction of it was last undone."""
    undone = tables.compaction._base_manager.using(alias).filter(chat=OuterRef("pk"))
    places = undone.filter(undone_position__isnull=False).order_by("-undone_position")
    return Subquery(places.values("undone_position")[:1])


def view_since(chat: Any) -> int:
    """Give the last position when the chat's view was last anything but longer than before."""
    current = chat.current_compaction
    # A chat that was just made was not read.
    undone = getattr(chat, "undone_position", None) or 0
    return max(undone, 0 if current is None else current.upto_position)


def planned(change: Change, parent: Any) -> Plan:
    """Say in positions what a compaction changed, with what the one before it had left out."""
    stood = None if parent is None or parent.summary is None else parent.summary.position
    before = {m.position: m for m in change.before if m.position}
    shown = {m.position: m for m in change.view if m.position and m.position in before}
    shown.pop(stood or 0, None)
    rows = sorted(shown)
    seen = [place for place in before if place != stood]
    upto = max(seen, default=0) if parent is None else max(*seen, 0, parent.upto_position)
    first = rows[0] if rows else upto + 1
    gone = [[place, place] for place in seen if place not in shown]
    if parent is not None:
        gone += parent.left_out or []
    front = _fronts(change, before, stood)
    keeps = len(front) == 1 and front[0] == before.get(stood or 0)
    return Plan(
        front=None if keeps else _joined(front),
        keeps=keeps,
        first=first,
        upto=upto,
        left_out=_ranges(gone, rows, first),
        rewrites=_rewrites(parent, before, shown),
    )


def _fronts(change: Change, before: dict[int, Message], stood: int | None) -> list[Message]:
    """Give what the view shows that is no row: new messages, and what stood there before."""
    pairs = zip(change.sources, change.view, strict=True)
    return [
        message
        for source, message in pairs
        if (stood is not None and message.position == stood)
        or (source is None and message.role != SYSTEM and message.position not in before)
    ]


def _joined(front: Sequence[Message]) -> Message | None:
    if not front:
        return None
    if len(front) == 1:
        kind = SUMMARY if front[0].kind == NORMAL else front[0].kind
        return clean_message(front[0].replace(kind=kind, tool_calls=None))
    texts = [message.content for message in front if message.content]
    marks = [message.mark for message in front if message.kind == SUMMARY]
    joined = Message(USER, "\n\n".join(texts), kind=SUMMARY, mark=marks[-1] if marks else None)
    return clean_message(joined)


def _ranges(gone: list[list[int]], rows: list[int], first: int) -> list[list[int]]:
    """Give what is left out from the boundary on, as few ranges between rows that are shown."""
    found: list[list[int]] = []
    for start, end in sorted([max(start, first), end] for start, end in gone if end >= first):
        if found and bisect(rows, found[-1][1]) == bisect(rows, start):
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def _rewrites(parent: Any, before: dict[Any, Message], shown: dict[Any, Message]) -> dict[str, Any]:
    """Give what is shown for rows: what was already, and what this change rewrote."""
    earlier = {} if parent is None else parent.rewrites or {}
    found = {place: told for place, told in earlier.items() if int(place) in shown}
    for place, message in shown.items():
        if message != before[place]:
            found[str(place)] = clean_message(message).to_dict()
    return found


def _front(turn: DatabaseTurn, message: Message, change: Change) -> Any:
    """Store what stands for the earlier rows, after the last one, with all that was spent."""
    spent = change.usage if change.usage.total or change.usage.cost is not None else None
    row = turn.tables.message.from_value(
        message.replace(usage=spent), chat_id=turn.row.chat_id, turn_id=turn.row.pk
    )
    row.place = lambda totals: turn.advance(1, **totals)
    row.save(using=turn.alias, force_insert=True)
    return row


def _last_version(chat: Any, alias: str) -> int:
    return chat.compactions.using(alias).aggregate(last=Max("version"))["last"] or 0
