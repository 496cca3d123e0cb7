"""The questions that are asked of chats and messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import Exists, OuterRef, Q

from nexo_django.exceptions import NotSupported
from nexo_django.models.clock import DatabaseTime

if TYPE_CHECKING:
    from nexo_django.models.chat import AbstractChat
    from nexo_django.models.compaction import AbstractCompaction

# What makes a message; its count may be taken again, by another ruler.
COUNTED = frozenset({"token_count", "token_ruler"})
# Foreign keys that a deletion sets to NULL.
LINKS = frozenset({"answers", "answers_id", "turn", "turn_id", "model", "model_id"})


class ChatQuerySet(models.QuerySet[Any]):
    """Chats, by address and by lease."""

    def for_agent(self, agent_name: str) -> Self:
        """Keep the chats of one agent."""
        return self.filter(agent_name=agent_name)

    def leased(self) -> Self:
        """Keep the chats in which a turn runs, by the database's clock."""
        return self.filter(~Q(lease_token=""), lease_expires_at__gte=DatabaseTime())

    def free(self) -> Self:
        """Keep the chats whose lease may be taken."""
        return self.filter(
            Q(lease_token="")
            | Q(lease_expires_at__isnull=True)
            | Q(lease_expires_at__lt=DatabaseTime())
        )

    def stale(self, before: datetime) -> Self:
        """Keep the chats without a message since, and without a running turn."""
        return self.free().filter(
            Q(last_message_at__lt=before) | Q(last_message_at__isnull=True, created__lt=before)
        )


class MessageQuerySet(models.QuerySet[Any]):
    """Messages, in the order of their positions."""

    def view(self, chat: AbstractChat) -> Self:
        """Keep what the model sees of a chat.

        The system message, what stands for the earlier rows in the current compaction, and
        the rows from its boundary on. What stands for rows in another is not shown.
        """
        current = chat.current_compaction
        shown = Q(position__in=fronts(current)) | self.behind(chat, current)
        return self.filter(shown, chat=chat).order_by("position")

    def behind(self, chat: AbstractChat, compaction: AbstractCompaction | None) -> Q:
        """Tell the rows from the boundary on that are shown."""
        kept = self.said(chat)
        if compaction is not None:
            kept &= Q(position__gte=compaction.first_kept_position) & outside(compaction)
        return kept

    def said(self, chat: AbstractChat) -> Q:
        """Tell rows of the conversation from those that stand for others in some view."""
        chats: Any = self.model._meta.get_field("chat").related_model
        made = chats._meta.get_field("compactions").related_model._base_manager
        stands = made.using(self.db).filter(chat=chat, summary=OuterRef("pk"))
        return ~(~Q(kind="normal") & Q(Exists(stands)))

    def update(self, **changes: Any) -> int:
        """Refuse to change what was said; only counts and links may be."""
        _refuse(changes)
        return super().update(**changes)

    def bulk_update(self, objs: Any, fields: Any, batch_size: int | None = None) -> int:
        """See update(); refused before Django's own transaction, which would have to end."""
        _refuse(fields := list(fields))
        return super().bulk_update(objs, fields, batch_size)

    def bulk_create(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Refuse to go around `save()`, which cleans, places and counts each message."""
        raise NotSupported(
            "Messages are stored by save() and create(), one by one: bulk_create() would leave "
            "them without a place, and out of the chat's totals."
        )


def _refuse(changed: Iterable[str]) -> None:
    if refused := set(changed) - COUNTED - LINKS:
        raise NotSupported(
            f"Stored messages are never changed; {', '.join(sorted(refused))} can't be updated."
        )


def fronts(compaction: AbstractCompaction | None) -> list[int]:
    """Give the positions of what is shown before the boundary: the system's, the summary's."""
    stands = None if compaction is None else compaction.summary
    return [0] if stands is None else [0, stands.position]


def outside(compaction: AbstractCompaction | None, field: str = "position") -> Q:
    """Keep what is at positions that a compaction does not leave out."""
    left_out = [] if compaction is None else compaction.left_out or []
    kept = Q()
    for first, last in left_out:
        kept &= ~Q(**{f"{field}__range": (first, last)})
    return kept
