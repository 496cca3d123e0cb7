"""The first transaction of a turn: the lease, the turn and its prompt, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError
from django.utils import timezone

from nexo_django.decisions import AWAITING
from nexo_django.leases import Lease, claimed
from nexo_django.models import Tables
from nexo_django.models.compiled import Add
from nexo_django.stores import database_attachments
from nexo_django.stores.base import (
    RUNNING,
    STOPPED,
    TurnRequest,
)
from nexo_django.stores.database_chat import SeenChat


class Raced(Exception):
    """Another changed the chat between our look and our claim."""


def start(
    tables: Tables,
    alias: str,
    address: Mapping[str, str],
    chat: SeenChat | None,
    request: TurnRequest,
    model_id: int | None,
    files: Sequence[Any] = (),
) -> tuple[Lease, Any, Any]:
    """Claim the chat, or make it, and store the turn, its prompt and its files' rows.

    Gives the lease, and the turn's row and the prompt's.
    """
    assert request.prompt is not None
    at, number = (1, 1) if chat is None else (chat.next_position, chat.next_turn)
    lease = Lease(tables.chat, alias, 0 if chat is None else chat.pk)
    turn = tables.turn(number=number, key=request.key, fingerprint=request.fingerprint)
    prompt = tables.message.from_value(request.prompt)

    def put(totals: dict[str, Any]) -> int:
        numbers = {"next_position": at + 1, "next_turn": number + 1, "open_turn": number}
        after = {"model_id": model_id, **numbers, **totals}
        if chat is None:
            lease.chat_id = _made(tables, alias, {**address, **claimed(lease.token), **after})
        elif not lease.claim({"next_position": at, "next_turn": number, **shown(chat)}, **after):
            raise Raced
        elif chat.open_turn is not None:
            _settle(tables, alias, chat)
        turn.chat_id = prompt.chat_id = lease.chat_id
        turn.save(using=alias, force_insert=True)
        prompt.turn = turn
        return at

    prompt.place = put
    prompt.save(using=alias, force_insert=True)
    database_attachments.store(alias, files, prompt)
    return lease, turn, prompt


def _made(tables: Tables, alias: str, columns: dict[str, Any]) -> int:
    """Make the chat with its lease taken, and give its key."""
    chat = tables.chat()
    for name, value in columns.items():
        setattr(chat, name, getattr(chat, name) + value.amount if type(value) is Add else value)
    try:
        chat.save(using=alias, force_insert=True)
    except IntegrityError:
        raise Raced from None
    return int(chat.pk)


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
