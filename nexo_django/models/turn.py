"""The turn: from one prompt to its final reply."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from nexo_django.models.fields import ExactCharField
from nexo_django.models.usage import UsageSums


class TurnStatus(models.TextChoices):
    """How a turn stands; the values are those of the stores."""

    RUNNING = "running", _("running")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    INTERRUPTED = "interrupted", _("interrupted")
    CANCELLED = "cancelled", _("cancelled")
    AWAITING_APPROVAL = "awaiting_approval", _("awaiting approval")
    AWAITING_ANSWER = "awaiting_answer", _("awaiting answer")
    TURN_LIMIT = "turn_limit", _("turn limit")


class AbstractTurn(UsageSums):
    """A turn of a chat; `key` is the caller's idempotency key, `error` an error's class."""

    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat",
        verbose_name=_("chat"),
        related_name="turns",
        on_delete=models.CASCADE,
        db_index=False,
    )
    number = models.PositiveIntegerField(_("number"))
    key = ExactCharField(_("key"), max_length=255, null=True, blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64, default="", blank=True)
    status = models.CharField(
        _("status"), max_length=20, choices=TurnStatus, default=TurnStatus.RUNNING
    )
    error = models.CharField(_("error"), max_length=100, default="", blank=True)
    started = models.DateTimeField(_("started"), auto_now_add=True)
    finished = models.DateTimeField(_("finished"), null=True, blank=True)

    class Meta:
        abstract = True
        verbose_name = _("turn")
        verbose_name_plural = _("turns")
        ordering = ["chat", "number"]
        constraints = [
            models.UniqueConstraint(fields=["chat", "number"], name="%(app_label)s_turn_number"),
            models.UniqueConstraint(fields=["chat", "key"], name="%(app_label)s_turn_key"),
            models.CheckConstraint(
                condition=Q(status__in=TurnStatus.values), name="%(app_label)s_turn_status"
            ),
        ]

    def __str__(self) -> str:
        return f"turn {self.number}"


class Turn(AbstractTurn):
    """The package's own turn."""

    class Meta(AbstractTurn.Meta):
        pass
