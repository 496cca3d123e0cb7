"""Calls that wait for a decision, in the database: whoever decides needs no lease.

Each decision is one conditional UPDATE of its call's row, so that one of several wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections as databases
from django.db import transaction
from django.utils import timezone

from nexo_django import connections
from nexo_django.decisions import (
    ANSWERED,
    APPROVED,
    AWAITING,
    DECIDES,
    DENIED,
    Decision,
    PendingCall,
    status_of,
    waiting,
)
from nexo_django.messages import ASSISTANT
from nexo_django.models.tool_call import CallStatus
from nexo_django.stores.base import RUNNING
from nexo_django.stores.refusals import undecidable

if TYPE_CHECKING:
    from nexo_django.stores.database import DatabaseChat
    from nexo_django.stores.database_turn import DatabaseTurn

T = TypeVar("T")
# What a row becomes: an approved call is one that has not started yet.
BECOMES = {
    APPROVED: CallStatus.PENDING,
    ANSWERED: CallStatus.PENDING,
    DENIED: CallStatus.DENIED,
}


def decision(row: Any) -> Decision | None:
    """Give what was decided on a call, None where nothing was."""
    if row.decided_at is None:
        return None
    answered = ANSWERED if row.decision_reason else APPROVED
    verb = DENIED if row.status == CallStatus.DENIED else answered
    return Decision(verb, row.decided_by, row.decision_reason, row.decided_at)


def waits(turn: DatabaseTurn) -> dict[str, str]:
    """Give the calls of the last step that wait, with what they wait for."""
    return {call_id: row.status for call_id, row in turn.calls.items() if _waits(row)}


def decisions(turn: DatabaseTurn) -> dict[str, Decision]:
    """Give what was decided on the calls of the last step, as it is known here."""
    found = {call_id: decision(row) for call_id, row in turn.calls.items()}
    return {call_id: made for call_id, made in found.items() if made is not None}


def hold(turn: DatabaseTurn, wanted: Mapping[str, str]) -> None:
    """Commit that calls wait, and that the turn does, in one transaction."""
    status = status_of(wanted.values())
    table = turn.tables.tool_call._base_manager.using(turn.alias)
    with turn.writing():
        turn.fence()
        for each in AWAITING:
            keys = [
                row.pk
                for i, row in turn.calls.items()
                if wanted.get(i) == each and row.status == CallStatus.PENDING
            ]
            if keys:
                unasked = table.filter(pk__in=keys, status=CallStatus.PENDING)
                unasked.filter(decided_at=None).update(status=each)
        turn.update_turn(turn.usage, status)
    turn.status = status


def decided(turn: DatabaseTurn) -> tuple[dict[str, Decision], tuple[PendingCall, ...]]:
    """Look what was decided since, and what still waits; with a decision the turn runs on."""
    table = turn.tables.tool_call._base_manager.using(turn.alias)
    keys = {row.pk: (call_id, row) for call_id, row in turn.calls.items()}
    with connections.mapped("read"):
        fresh = table.filter(pk__in=keys).order_by("index")
        names = ("status", "decided_by", "decided_at", "decision_reason", "finished")
        for pk, *values in fresh.values_list("pk", *names):
            for name, value in zip(names, values, strict=True):
                setattr(keys[pk][1], name, value)
    made = {i: m for i, m in decisions(turn).items() if turn.calls[i].finished is None}
    if made and turn.status != RUNNING:
        with turn.writing():
            turn.fence()
            turn.update_turn(turn.usage, RUNNING)
        turn.status = RUNNING
    return made, tuple(waiting(r.value(), r.status) for _, r in keys.values() if _waits(r))


def pending(chat: DatabaseChat) -> list[PendingCall]:
    """Give the calls of the unfinished turn's last step that wait, in call order."""
    with connections.mapped("read"):
        return [waiting(row.value(), row.status) for row in _step(chat) or () if _waits(row)]


def decide(chat: DatabaseChat, call_id: str, made: Decision) -> PendingCall:
    """Record a decision if nobody decided on that call before, or raise DecisionRefused."""
    return _once(chat.alias, lambda: _decide(chat, call_id, made))


def _decide(chat: DatabaseChat, call_id: str, made: Decision) -> PendingCall:
    found = _step(chat)
    if found is None:
        raise chat._missing()
    step = {row.value().id: row for row in found}
    row = step.get(call_id)
    if row is not None and row.status == DECIDES[made.verb]:
        calls = chat.tables.tool_call._base_manager.using(chat.alias)
        changed = calls.filter(pk=row.pk, status=row.status).update(
            status=BECOMES[made.verb],
            decided_by=made.by,
            decided_at=timezone.now(),
            decision_reason=made.text,
        )
        if changed:
            return waiting(row.value(), row.status)
        # Another was faster; a locking read sees what it did, in whatever transaction we are.
        row = calls.select_for_update().filter(pk=row.pk).first()
    listed = [waiting(each.value(), each.status) for each in step.values() if _waits(each)]
    before = None if row is None else decision(row)
    raise undecidable(call_id, made, None if row is None else row.status, before, listed)


def _step(chat: DatabaseChat) -> list[Any] | None:
    """Give the calls of the last step of the turn that is not finished; None without a chat."""
    found = chat._rows().values_list("pk", "open_turn").first()
    if found is None:
        return None
    key, number = found
    if number is None:
        return []
    asking = chat._messages().filter(chat=key, turn__number=number, role=ASSISTANT)
    last = asking.order_by("-position").values_list("pk", flat=True).first()
    calls = chat.tables.tool_call._base_manager.using(chat.alias)
    return list(calls.filter(message=last).order_by("index"))


def _waits(row: Any) -> bool:
    return row.status in AWAITING


def _once(alias: str, write: Callable[[], T]) -> T:
    """Run a transaction, or a part of the caller's: a view may decide inside its own."""
    if not databases[alias].in_atomic_block:
        return connections.first(alias, write)
    with connections.mapped(), transaction.atomic(using=alias):
        return write()
