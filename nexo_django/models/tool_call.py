"""The tool call: what the model asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from nexo_django.messages import ASSISTANT
from nexo_django.messages import Message as MessageValue
from nexo_django.messages import ToolCall as CallValue
from nexo_django.models import values
from nexo_django.models.fields import ExactCharField, ExactJSONField
from nexo_django.sanitize import clean_message


class CallStatus(models.TextChoices):
    """How a tool call stands."""

    PENDING = "pending", _("pending")
    AWAITING_APPROVAL = "awaiting_approval", _("awaiting approval")
    AWAITING_ANSWER = "awaiting_answer", _("awaiting answer")
    RUNNING = "running", _("running")
    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    DENIED = "denied", _("denied")
    INTERRUPTED = "interrupted", _("interrupted")


# A call that still wants its result.
OPEN = (
    CallStatus.PENDING,
    CallStatus.AWAITING_APPROVAL,
    CallStatus.AWAITING_ANSWER,
    CallStatus.RUNNING,
)
# The same of rows; a call that was denied wants one until it is told.
UNANSWERED = Q(status__in=OPEN) | Q(status=CallStatus.DENIED, finished=None)


class AbstractToolCall(models.Model):
    """A call of a tool; `result`, in the opposite direction, is the message that answers it.

    The place of that message is `message.position + 1 + index`. An id or a name that is
    longer than its column is whole in `extra`.
    """

    message = models.ForeignKey(  # type: ignore[misc]
        "Message",
        verbose_name=_("message"),
        related_name="tool_calls",
        on_delete=models.CASCADE,
        db_index=False,
    )
    index = models.PositiveIntegerField(_("index"), default=0)
    call_id = ExactCharField(_("call id"), max_length=values.CALL_ID)
    name = models.CharField(_("tool"), max_length=values.NAME)
    arguments = ExactJSONField(_("arguments"), default=dict, blank=True)
    raw_arguments = models.TextField(_("raw arguments"), null=True, blank=True)  # noqa: DJ001
    provider_fields = ExactJSONField(_("provider fields"), null=True, blank=True)
    extra = ExactJSONField(_("extra"), null=True, blank=True)
    status = models.CharField(
        _("status"), max_length=20, choices=CallStatus, default=CallStatus.PENDING
    )
    decided_by = models.CharField(_("decided by"), max_length=191, default="", blank=True)
    decided_at = models.DateTimeField(_("decided at"), null=True, blank=True)
    decision_reason = models.TextField(_("reason"), default="", blank=True)
    started = models.DateTimeField(_("started"), null=True, blank=True)
    finished = models.DateTimeField(_("finished"), null=True, blank=True)

    class Meta:
        abstract = True
        verbose_name = _("tool call")
        verbose_name_plural = _("tool calls")
        ordering = ["message", "index"]
        permissions = [("decide_toolcall", "Can approve and deny tool calls")]
        constraints = [
            models.UniqueConstraint(fields=["message", "call_id"], name="%(app_label)s_call_id"),
            models.CheckConstraint(
                condition=Q(status__in=CallStatus.values), name="%(app_label)s_call_status"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.call_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row, with what it asks for cleaned when it is new."""
        if self._state.adding:
            asked = MessageValue(ASSISTANT, tool_calls=(self.value(),))
            self._set(clean_message(asked).calls[0])
        super().save(*args, **kwargs)

    @cached_property
    def place(self) -> int:
        """The position that is kept for the result."""
        position: int = self.message.position
        return position + 1 + self.index

    @property
    def is_open(self) -> bool:
        """Whether the call still wants its result: one that was denied, until it is told."""
        return self.status in OPEN or (self.status == CallStatus.DENIED and self.finished is None)

    def value(self) -> CallValue:
        """Give the call as a value."""
        return values.call_value(self)

    @classmethod
    def from_values(cls, message: Any, calls: Iterable[CallValue]) -> list[Self]:
        """Make the rows of a message's calls, unsaved."""
        rows = [cls(message=message, index=index) for index, _call in enumerate(calls)]
        for row, call in zip(rows, calls, strict=True):
            row._set(call)
        return rows

    def _set(self, call: CallValue) -> None:
        for name, value in values.call_columns(call).items():
            setattr(self, name, value)


class ToolCall(AbstractToolCall):
    """The package's own tool call."""

    class Meta(AbstractToolCall.Meta):
        pass
