"""Deciding on a tool call that waits, from whichever process, and telling of it."""

from __future__ import annotations

import logging
from typing import Any

from django.db import transaction

from nexo_django import registry, signals
from nexo_django.decisions import ANSWERED, MOST_BY, Decision, PendingCall
from nexo_django.exceptions import brief
from nexo_django.sanitize import clean_text
from nexo_django.stores.base import StoredChat

logger = logging.getLogger(__name__)


def decision(verb: str, by: Any = None, text: str = "") -> Decision:
    """Make a decision of what a caller gave; raises TypeError or ValueError for what is none."""
    if not isinstance(text, str):
        what = "An answer" if verb == ANSWERED else "A reason"
        raise TypeError(f"{what} is text, not {type(text).__name__}.")
    text = clean_text(text)
    if verb == ANSWERED and not text.strip():
        raise ValueError("The answer is empty; give it some text.")
    who = "" if by is None else clean_text(str(by)).strip()
    if len(who) > MOST_BY:
        raise ValueError(f"by is {brief(who)}; give a name of at most {MOST_BY} characters.")
    return Decision(verb, who, text)


def decide(
    stored: StoredChat, agent_name: str, instance_id: str, call_id: str, made: Decision
) -> PendingCall:
    """Record a decision and send `call_decided` once it is committed."""
    if not isinstance(call_id, str):
        raise TypeError(f"A call is named by its id, not {brief(call_id)}.")
    call = stored.decide(call_id, made)

    def tell() -> None:
        _send(agent_name, instance_id, call, made)

    alias = getattr(stored, "alias", None)
    if alias is None:
        tell()
    else:
        transaction.on_commit(tell, using=alias)
    return call


def _send(agent_name: str, instance_id: str, call: PendingCall, made: Decision) -> None:
    sent = signals.call_decided.send_robust(
        registry.agents().get(agent_name),
        agent_name=agent_name,
        instance_id=instance_id,
        call=call,
        decision=made,
    )
    for receiver, outcome in sent:
        if isinstance(outcome, Exception):
            logger.error("receiver=%r failed", receiver, exc_info=outcome)
