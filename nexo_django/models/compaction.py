"""The compaction: where the view's rows begin, and what stands for those before."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from nexo_django.models.fields import ExactJSONField


class CompactionStatus(models.TextChoices):
    """How a compaction ended."""

    RUNNING = "running", _("running")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    UNDONE = "undone", _("undone")


class AbstractCompaction(models.Model):
    """One compaction of a chat; rows are never changed by it.

    The view is the system message, `summary` (or a note that is there for it), and the rows
    from `first_kept_position` on, without those in `left_out` (first and last positions).
    `rewrites` has the messages that are shown for some of them, by position. It looked at rows
    up to `upto_position` only. To undo it is to go back to `parent`; `undone_position` was
    the last then.
    """

    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat",
        verbose_name=_("chat"),
        related_name="compactions",
        on_delete=models.CASCADE,
        db_index=False,
    )
    version = models.PositiveIntegerField(_("version"))
    parent = models.ForeignKey(
        "self",
        verbose_name=_("parent"),
        related_name="children",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    first_kept_position = models.PositiveIntegerField(_("first kept position"), default=0)
    upto_position = models.PositiveIntegerField(_("up to position"), default=0)
    summary = models.ForeignKey(  # type: ignore[misc]
        "Message",
        verbose_name=_("summary"),
        related_name="summarises",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    rewrites = ExactJSONField(_("rewrites"), default=dict, blank=True)
    left_out = ExactJSONField(_("left out"), default=list, blank=True)
    layers = models.JSONField(_("layers"), default=list, blank=True)
    trigger = models.CharField(_("trigger"), max_length=20, default="", blank=True)
    tokens_before = models.PositiveIntegerField(_("tokens before"), null=True, blank=True)
    tokens_after = models.PositiveIntegerField(_("tokens after"), null=True, blank=True)
    tokens_target = models.PositiveIntegerField(_("target"), null=True, blank=True)
    reached = models.BooleanField(_("target reached"), default=False)
    usage = models.JSONField(_("usage"), null=True, blank=True)
    duration = models.DurationField(_("duration"), null=True, blank=True)
    status = models.CharField(
        _("status"), max_length=10, choices=CompactionStatus, default=CompactionStatus.RUNNING
    )
    undone_position = models.PositiveIntegerField(_("undone after"), null=True, blank=True)
    error = models.CharField(_("error"), max_length=100, default="", blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        abstract = True
        verbose_name = _("compaction")
        verbose_name_plural = _("compactions")
        ordering = ["chat", "version"]
        constraints = [
            models.UniqueConstraint(fields=["chat", "version"], name="%(app_label)s_cmp_version"),
            models.CheckConstraint(
                condition=Q(status__in=CompactionStatus.values), name="%(app_label)s_cmp_status"
            ),
        ]

    def __str__(self) -> str:
        return f"compaction {self.version}"


class Compaction(AbstractCompaction):
    """The package's own compaction."""

    class Meta(AbstractCompaction.Meta):
        pass
