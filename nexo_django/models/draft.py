"""The draft: what a turn has said of its next message, for those who watch it elsewhere."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class AbstractDraft(models.Model):
    """The text that a running turn is writing; it is written while somebody watches.

    It is no part of the chat: the message that is stored at `at` or later has all of it.
    """

    # Without a constraint: who only watches must not stand in the way of a deletion.
    chat = models.OneToOneField(  # type: ignore[misc]
        "Chat",
        verbose_name=_("chat"),
        related_name="draft",
        on_delete=models.CASCADE,
        db_constraint=False,
    )
    at = models.PositiveIntegerField(_("position"), default=0)
    content = models.TextField(_("content"), default="", blank=True)
    reasoning = models.TextField(_("reasoning"), default="", blank=True)
    watched_until = models.DateTimeField(_("watched until"), null=True, blank=True)

    class Meta:
        abstract = True
        verbose_name = _("draft")
        verbose_name_plural = _("drafts")

    def __str__(self) -> str:
        return f"draft {self.at}"


class Draft(AbstractDraft):
    """The package's own draft."""

    class Meta(AbstractDraft.Meta):
        pass
