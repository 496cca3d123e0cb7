"""Settling what an earlier turn left open: its calls without a result get one, stored once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nexo_django.decisions import ANSWERED, DENIED, closed_result
from nexo_django.messages import TOOL
from nexo_django.models.tool_call import CallStatus
from nexo_django.stores.database_decisions import decision
from nexo_django.stores.database_turn import DatabaseTurn
from nexo_django.stores.rows import Rows
from nexo_django.transcript import interrupted_result


def repair(
    turn: DatabaseTurn, rows: Rows, *, keep_open: bool, idempotent: frozenset[str] = frozenset()
) -> None:
    """Store an interrupted result for each call that has none, at the place kept for it.

    With `keep_open` those of the last step that never started, that wait for a decision or
    were denied, or whose tool is `idempotent`, are still to be answered. What can't be mended in the store, such as rows made by hand,
    is mended in every view of it instead.
    """
    missing = list(_unanswered(rows))
    last = _last_step(rows) if keep_open else None
    runnable = [
        call
        for call in missing
        if last is not None
        and call.message_id == last.pk
        and (call.status != CallStatus.RUNNING or call.value().name in idempotent)
    ]
    turn.calls = {} if last is None else {c.value().id: c for c in rows.calls.get(last.pk, ())}
    again = [call for call in runnable if call.status == CallStatus.RUNNING]
    lost = [call for call in missing if call not in runnable and _has_place(rows, call)]
    if not lost and not again:
        return
    with turn.writing():
        turn.fence()
        if again:
            calls = type(again[0])._base_manager.using(turn.alias)
            calls.filter(pk__in=[c.pk for c in again]).update(status=CallStatus.PENDING)
        stored = [_interrupt(turn, call) for call in lost]
    rows.add(stored)


def _interrupt(turn: DatabaseTurn, call: Any) -> Any:
    made = decision(call) if call.status != CallStatus.RUNNING else None
    value = closed_result(call.value(), call.status, made)
    status = CallStatus.INTERRUPTED
    if value is not None and made is not None:
        status = {DENIED: CallStatus.DENIED, ANSWERED: CallStatus.DONE}.get(made.verb, status)
    return turn.store_result(value or interrupted_result(call.value()), call, call.place, status)


def _unanswered(rows: Rows) -> Iterator[Any]:
    """Give the calls without a result."""
    answered = {row.answers_id for row in rows.messages}
    for row in rows.messages:
        for call in rows.calls.get(row.pk, ()):
            # A result that compaction left out of the view is stored all the same.
            if call.pk not in answered and call.is_open:
                yield call


def _last_step(rows: Rows) -> Any:
    """Give the message whose results are at the end of the view."""
    return next((row for row in reversed(rows.messages) if row.role != TOOL), None)


def _has_place(rows: Rows, call: Any) -> bool:
    # A message made by hand kept no places for its results: others have them.
    return all(row.position != call.place for row in rows.messages)
