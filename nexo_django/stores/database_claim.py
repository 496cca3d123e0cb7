"""The first transaction of a turn: the lease, the turn and its prompt, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError
from django.utils import timezone

from nexo_django.decisions import AWAITING
from nexo_django.leases import Lease
from nexo_django.models import Tables
from nexo_django.stores import database_attachments
from nexo_django.stores.base import (
    RUNNING,
    STOPPED,
    TurnRequest,
)


class Raced(Exception):
    """Another changed the chat between our look and our claim."""


def start(
    tables: Tables,
    alias: str,
    chat: Any,
    request: TurnRequest,
    model_id: int | None,
    files: Sequence[Any] = (),
) -> tuple[Any, Lease, Any]:
    """Claim the chat, which may be new, and store the turn, its prompt and its files' rows."""
    assert request.prompt is not None
    if chat.pk is None:
        try:
            chat.save(using=alias, force_insert=True)
        except IntegrityError:
            raise Raced from None
    lease = Lease(tables.chat, alias, chat.pk)
    at, number = chat.next_position, chat.next_turn
    turn = tables.turn(chat_id=chat.pk, number=number, key=request.key)
    turn.fingerprint = request.fingerprint
    prompt = tables.message.from_value(request.prompt, chat_id=chat.pk)

    def put(totals: dict[str, Any]) -> int:
        seen = {"next_position": at, "next_turn": number, **shown(chat)}
        after = {"next_position": at + 1, "next_turn": number + 1, "open_turn": number}
        if not lease.claim(seen, model_id=model_id, **after, **totals):
            raise Raced
        if chat.open_turn is not None:
            _settle(tables, alias, chat)
        turn.save(using=alias, force_insert=True)
        prompt.turn = turn
        return int(at)

    prompt.place = put
    prompt.save(using=alias, force_insert=True)
    database_attachments.store(alias, files, prompt)
    chat.next_position = at + 1
    return chat, lease, turn


def resume(tables: Tables, alias: str, chat: Any, turn: Any, model_id: int | None) -> Lease:
    """Claim the chat to go on with its open turn."""
    lease = Lease(tables.chat, alias, chat.pk)
    seen = {"next_turn": chat.next_turn, "open_turn": turn.number, **shown(chat)}
    if not lease.claim(seen, model_id=model_id):
        raise Raced
    turn.status, turn.error, turn.finished = RUNNING, "", None
    turn.save(using=alias, update_fields=["status", "error", "finished"])
    return lease


def shown(chat: Any) -> dict[str, Any]:
    """Give what a claim must find unchanged: the view that was read is the one that is run."""
    return {"current_compaction": chat.current_compaction_id}


def _settle(tables: Tables, alias: str, chat: Any) -> None:
    """Say of a turn that nobody runs any more that it was interrupted."""
    left = tables.turn._base_manager.using(alias).filter(
        chat=chat.pk,
        number=chat.open_turn,
        status__in=(RUNNING, *AWAITING),
    )
    left.update(status=STOPPED, finished=timezone.now())
