"""Why a decision can't be recorded, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterable

from nexo_django.decisions import (
    ANSWERED,
    AWAITING_ANSWER,
    AWAITING_APPROVAL,
    Decision,
    PendingCall,
)
from nexo_django.exceptions import AlreadyDecided, CallNotPending, DecisionRefused, brief


def undecidable(
    call_id: str,
    made: Decision,
    status: str | None,
    before: Decision | None,
    pending: Iterable[PendingCall],
) -> DecisionRefused:
    """Make the error for a call that no such decision can be made on."""
    if before is not None:
        return AlreadyDecided(
            f"The call {brief(call_id)} was {before} already; a decision is made once.",
            by=before.by,
            at=before.at,
        )
    if status == AWAITING_ANSWER:
        return DecisionRefused(
            f"The call {brief(call_id)} is a question to the user: answer({brief(call_id)}, text)."
        )
    if status == AWAITING_APPROVAL and made.verb == ANSWERED:
        return DecisionRefused(
            f"The call {brief(call_id)} waits for an approval, not for an answer: approve() or "
            f"deny() it."
        )
    ids = ", ".join(brief(call.id) for call in pending) or "none"
    stands = "" if status is None else f" It is {status}."
    return CallNotPending(
        f"No call {brief(call_id)} waits for a decision.{stands} The calls that wait: {ids}."
    )
