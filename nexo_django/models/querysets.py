"""The questions that are asked of chats and messages."""

from __future__ import annotations

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
        """Keep what the model sees of a chat: see `shown`."""
        return self.shown(chat, chat.current_compaction)

    def shown(
        self,
        chat: AbstractChat,
        compaction: AbstractCompaction | None,
        as_of: int | None = None,
    ) -> Self:
        """Keep what the model sees of a chat with a compaction, or without any.

        The system message, what stands for the earlier rows, and the rows from the boundary
        on, up to `as_of`. What stands for rows in another compaction is not shown.
        """
        kept = self.said(chat)
        if as_of is not None:
            kept &= Q(position__lte=as_of)
        first = [0]
        if compaction is not None:
            kept &= Q(position__gte=compaction.first_kept_position)
            kept &= outside(compaction)
            if compaction.summary is not None:
                first.append(compaction.summary.position)
        # Positions only: with another column here, every row of the chat would be read.
        return self.filter(Q(position__in=first) | kept, chat=chat).order_by("position")

    def said(self, chat: AbstractChat) -> Q:
        """Tell rows of the conversation from those that stand for others in some view."""
        chats: Any = type(chat)
        made = chats._meta.get_field("compactions").related_model._base_manager
        stands = made.using(self.db).filter(chat=chat, summary=OuterRef("pk"))
        return ~(~Q(kind="normal") & Q(Exists(stands)))

    def update(self, **changes: Any) -> int:
        """Refuse to change what was said; only counts and links may be."""
        if refused := set(changes) - COUNTED - LINKS:
            raise NotSupported(
                f"Stored messages are never changed; {', '.join(sorted(refused))} can't be updated."
            )
        return super().update(**changes)


def outside(compaction: AbstractCompaction | None, field: str = "position") -> Q:
    """Keep what is at positions that a compaction does not leave out."""
    left_out = [] if compaction is None else compaction.left_out or []
    kept = Q()
    for first, last in left_out:
        kept &= ~Q(**{f"{field}__range": (first, last)})
    return kept
