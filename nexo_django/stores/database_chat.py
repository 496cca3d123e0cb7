"""The row of a chat as a turn finds it: what a claim and a view need of it, in one statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from nexo_django.completion import catalogue
from nexo_django.models import Tables
from nexo_django.models.clock import DatabaseTime
from nexo_django.models.compiled import select
from nexo_django.stores.database_compaction import last_undone

# The chat's own columns, then its model's, its compaction's and the summary's.
_OWN = (
    "pk",
    "lease_token",
    "lease_expires_at",
    "open_turn",
    "next_turn",
    "next_position",
    "current_compaction_id",
    "model_id",
)
_MODEL = ("model__provider", "model__model_id")
_COMPACTION = ("upto_position", "first_kept_position", "left_out", "rewrites", "summary_id")


@dataclass
class SeenChat:
    """A chat that is stored; much cheaper to read than an instance of the model.

    `current_compaction` has the columns that a view needs, and `now` is the time of the
    database, by which the lease is judged.
    """

    pk: int
    lease_token: str = ""
    lease_expires_at: datetime | None = None
    open_turn: int | None = None
    next_turn: int = 1
    next_position: int = 1
    current_compaction_id: int | None = None
    model_id: int | None = None
    # What the model is called, as the catalogue's facts have it.
    model: tuple[str, str] | None = None
    current_compaction: Any = None
    now: datetime | None = None
    undone_position: int | None = None

    def busy(self) -> float | None:
        """Give for how many seconds another has the lease, or None if it is free."""
        if not self.lease_token or self.lease_expires_at is None or self.now is None:
            return None
        left: float = (self.lease_expires_at - self.now).total_seconds()
        return max(left, 0.001) if left >= 0 else None

    def asks(self, litellm_id: str) -> bool:
        """Whether the chat's model is the one of that id."""
        facts = catalogue.facts(litellm_id)
        return self.model == (facts.provider, facts.model_id)


def find(tables: Tables, alias: str, agent_name: str, instance_id: str) -> SeenChat | None:
    """Read a chat's row, or None if there is none."""
    address = {"agent_name": agent_name, "instance_id": instance_id}
    return next(map(_seen, select(_rows, alias, tables, **address)), None)


def _rows(alias: str, tables: Tables, **address: Any) -> Any:
    chats = tables.chat.objects.using(alias).filter(**address).order_by()
    chats = chats.annotate(now=DatabaseTime(), undone=last_undone(tables, alias))
    compaction = [f"current_compaction__{name}" for name in (*_COMPACTION, "summary__position")]
    return chats.values_list(*_OWN, *_MODEL, *compaction, "now", "undone")


def _seen(columns: Any) -> SeenChat:
    own, (provider, model) = columns[: len(_OWN)], columns[len(_OWN) : len(_OWN) + 2]
    *compaction, position, now, undone = columns[len(_OWN) + 2 :]
    chat = SeenChat(**dict(zip(_OWN, own, strict=True)), now=now, undone_position=undone)
    if chat.model_id is not None:
        chat.model = (provider, model)
    if chat.current_compaction_id is not None:
        made = SimpleNamespace(**dict(zip(_COMPACTION, compaction, strict=True)))
        made.summary = None if made.summary_id is None else SimpleNamespace(position=position)
        chat.current_compaction = made
    return chat
