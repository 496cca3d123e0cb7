"""The chat: one row per agent and instance, which orders and fences everything in it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from nexo_django.models.fields import ExactCharField
from nexo_django.models.querysets import ChatQuerySet
from nexo_django.models.usage import UsageSums


class AbstractChat(UsageSums):
    """A session's chat.

    The lease columns say who may run a turn: every write of a turn begins with an UPDATE of
    this row that names the lease's token. `next_position` and `next_turn` are the numbers
    that come next; `open_turn` is the last turn's until it is done or cancelled.
    """

    agent_name = ExactCharField(_("agent"), max_length=100)
    instance_id = ExactCharField(_("instance"), max_length=191)
    model = models.ForeignKey(
        "nexo_django.Model",
        verbose_name=_("language model"),
        related_name="%(app_label)s_chats",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("user"),
        related_name="%(app_label)s_chats",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    metadata = models.JSONField(_("metadata"), default=dict, blank=True)

    lease_token = models.CharField(_("lease"), max_length=32, default="", blank=True)
    lease_expires_at = models.DateTimeField(_("lease expires at"), null=True, blank=True)
    cancel_turn = models.PositiveIntegerField(_("turn to cancel"), null=True, blank=True)
    open_turn = models.PositiveIntegerField(_("open turn"), null=True, blank=True)
    next_turn = models.PositiveIntegerField(_("next turn"), default=1)
    next_position = models.PositiveIntegerField(_("next position"), default=1)

    message_count = models.PositiveIntegerField(_("messages"), default=0)
    token_count = models.BigIntegerField(_("tokens of the messages"), default=0)
    current_compaction = models.ForeignKey(  # type: ignore[misc]
        "Compaction",
        verbose_name=_("current compaction"),
        related_name="+",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    last_message_at = models.DateTimeField(_("last message at"), null=True, blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)

    objects: ClassVar[Any] = ChatQuerySet.as_manager()

    class Meta:
        abstract = True
        verbose_name = _("chat")
        verbose_name_plural = _("chats")
        constraints = [
            models.UniqueConstraint(
                fields=["agent_name", "instance_id"], name="%(app_label)s_chat_pair"
            ),
            models.CheckConstraint(
                condition=~Q(agent_name="") & ~Q(instance_id=""), name="%(app_label)s_chat_named"
            ),
        ]
        indexes = [models.Index(fields=["last_message_at"], name="%(app_label)s_chat_last")]

    def __str__(self) -> str:
        return f"{self.agent_name}/{self.instance_id}"


class Chat(AbstractChat):
    """The package's own chat."""

    class Meta(AbstractChat.Meta):
        pass
