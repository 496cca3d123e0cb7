"""Compaction in the database: a row that moves the boundary; what was said stays as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Max

from nexo_django.compaction.change import Change
from nexo_django.models import Tables, usage
from nexo_django.models.compaction import CompactionStatus
from nexo_django.sanitize import clean_message

if TYPE_CHECKING:
    from nexo_django.stores.database_turn import DatabaseTurn


def store(turn: DatabaseTurn, change: Change) -> None:
    """Store a compaction and what stands for the earlier rows, inside `writing`."""
    turn.fence(**_spent(change))
    chats = turn.tables.chat.objects.using(turn.alias)
    chat = chats.select_related("current_compaction").get(pk=turn.row.chat_id)
    parent = chat.current_compaction
    stored = {id(message): _row(turn, message) for message in change.added}
    # The last is what this run made, where an earlier one was kept in front of it.
    front = (_stored(chat, message, stored) for message in reversed(change.front))
    summary = next((found for found in front if found is not None), None)
    first = change.first_kept_position
    if first is None:
        first = (change.upto_position or 0) + 1
    made = turn.tables.compaction(
        chat_id=chat.pk,
        version=_last_version(chat, turn.alias) + 1,
        parent=parent,
        first_kept_position=first,
        upto_position=change.upto_position or 0,
        summary_id=summary,
        rewrites=_rewrites(parent, change, first),
        layers=list(change.layers),
        trigger=change.trigger,
        tokens_before=change.tokens_before,
        tokens_after=change.tokens_after,
        tokens_target=change.target,
        reached=change.reached,
        usage=change.usage.to_dict(),
        duration=timedelta(seconds=change.seconds),
        status=CompactionStatus.DONE,
    )
    made.save(using=turn.alias, force_insert=True)
    turn.fence(current_compaction=made)


def undo(tables: Tables, alias: str, chat: Any) -> bool:
    """Go back to the parent of the chat's compaction, unless a turn runs or ran meanwhile."""
    current = chat.current_compaction
    free = tables.chat.objects.using(alias).free().order_by()
    with transaction.atomic(using=alias):
        seen = free.filter(pk=chat.pk, current_compaction=current)
        if not seen.update(current_compaction=current.parent_id):
            return False
        current.status = CompactionStatus.UNDONE
        current.save(using=alias, update_fields=["status"])
    return True


def _spent(change: Change) -> dict[str, Any]:
    """Give what the chat's totals gain that no message brings: a summary tells its own usage."""
    if any(message.usage is not None for message in change.added):
        return {}
    return usage.moves(usage.columns(change.usage))


def _row(turn: DatabaseTurn, message: Any) -> int:
    """Store a message that stands for the earlier rows, after the last one."""
    row = turn.tables.message.from_value(
        clean_message(message), chat_id=turn.row.chat_id, turn_id=turn.row.pk
    )
    row.place = lambda totals: turn.advance(1, **totals)
    row.save(using=turn.alias, force_insert=True)
    return int(row.pk)


def _stored(chat: Any, message: Any, stored: dict[int, int]) -> int | None:
    """Give the row of a message of the front: a new one, or the one that stood there before."""
    if id(message) in stored:
        return stored[id(message)]
    current = chat.current_compaction
    return None if current is None or message.position is None else current.summary_id


def _rewrites(parent: Any, change: Change, first: int) -> dict[str, Any]:
    """Give what is shown in place of rows: what was before the change, and what it changed."""
    earlier = {} if parent is None else parent.rewrites or {}
    found = {place: shown for place, shown in earlier.items() if int(place) >= first}
    front = {message.position for message in change.front}
    for position, new in change.rewrites.items():
        if position >= first and position not in front:
            found[str(position)] = None if new is None else clean_message(new).to_dict()
    return found


def _last_version(chat: Any, alias: str) -> int:
    found = chat.compactions.using(alias).aggregate(last=Max("version"))["last"]
    return found or 0
