"""The message: `save()` is the one hook through which every message is persisted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from django.db import models, router, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from nexo_django import signals, tokens
from nexo_django.exceptions import NotSupported
from nexo_django.messages import SYSTEM
from nexo_django.messages import Message as Value
from nexo_django.messages import ToolCall as CallValue
from nexo_django.models import compiled, usage, values
from nexo_django.models.compiled import Add
from nexo_django.models.fields import ExactJSONField
from nexo_django.models.querysets import COUNTED, MessageQuerySet
from nexo_django.sanitize import clean_message

# Gets what the message changes in its chat's row, writes that, and gives its position.
Place = Callable[[dict[str, Any]], int]


class Role(models.TextChoices):
    """Who speaks."""

    SYSTEM = "system", _("system")
    USER = "user", _("user")
    ASSISTANT = "assistant", _("assistant")
    TOOL = "tool", _("tool")


class Kind(models.TextChoices):
    """What a message is: said in the conversation, or made from it."""

    NORMAL = "normal", _("normal")
    SUMMARY = "summary", _("summary")
    NOTICE = "notice", _("notice")


class MessageStatus(models.TextChoices):
    """Whether all of a message came."""

    COMPLETE = "complete", _("complete")
    INTERRUPTED = "interrupted", _("interrupted")


class AbstractMessage(compiled.Inserted):
    """A message at its position in the chat: 0 is the system message's, the others count on.

    A message with calls keeps the positions after it for their results. What the model used
    is NULL where it did not report, and `cost` where the price is unknown.
    """

    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat",
        verbose_name=_("chat"),
        related_name="messages",
        on_delete=models.CASCADE,
        db_index=False,
    )
    turn = models.ForeignKey(  # type: ignore[misc]
        "Turn",
        verbose_name=_("turn"),
        related_name="messages",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    position = models.PositiveIntegerField(_("position"))
    role = models.CharField(_("role"), max_length=10, choices=Role)
    kind = models.CharField(_("kind"), max_length=10, choices=Kind, default=Kind.NORMAL)
    status = models.CharField(
        _("status"), max_length=12, choices=MessageStatus, default=MessageStatus.COMPLETE
    )
    content = models.TextField(_("content"), null=True, blank=True)  # noqa: DJ001
    parts = ExactJSONField(_("parts"), null=True, blank=True)
    reasoning = ExactJSONField(_("reasoning"), null=True, blank=True)
    answers = models.OneToOneField(  # type: ignore[misc]
        "ToolCall",
        verbose_name=_("answers"),
        related_name="result",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    is_error = models.BooleanField(_("is an error"), default=False)
    model = models.ForeignKey(
        "nexo_django.Model",
        verbose_name=_("language model"),
        related_name="%(app_label)s_messages",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    model_name = models.CharField(
        _("model name"), max_length=values.MODEL_NAME, default="", blank=True
    )
    finish_reason = models.CharField(
        _("finish reason"), max_length=values.FINISH_REASON, default="", blank=True
    )
    input_tokens = models.PositiveIntegerField(_("input tokens"), null=True, blank=True)
    output_tokens = models.PositiveIntegerField(_("output tokens"), null=True, blank=True)
    cached_tokens = models.PositiveIntegerField(_("cached tokens"), null=True, blank=True)
    cache_write_tokens = models.PositiveIntegerField(_("cache write tokens"), null=True, blank=True)
    reasoning_tokens = models.PositiveIntegerField(_("reasoning tokens"), null=True, blank=True)
    cost = models.DecimalField(
        _("cost"),
        max_digits=usage.COST_DIGITS,
        decimal_places=usage.COST_PLACES,
        null=True,
        blank=True,
    )
    raw_usage = ExactJSONField(_("usage"), null=True, blank=True)
    token_count = models.PositiveIntegerField(_("tokens"), default=0)
    token_ruler = models.CharField(_("counted by"), max_length=32, default="", blank=True)
    extra = ExactJSONField(_("extra"), null=True, blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)

    objects: ClassVar[Any] = MessageQuerySet.as_manager()
    tool_calls: Any

    # The calls that come with a new row, and who gives it its place.
    new_calls: Sequence[CallValue] = ()
    place: Place | None = None

    class Meta:
        abstract = True
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ["chat", "position"]
        constraints = [
            models.UniqueConstraint(fields=["chat", "position"], name="%(app_label)s_msg_position"),
            models.CheckConstraint(
                condition=Q(role=Role.SYSTEM, position=0)
                | (~Q(role=Role.SYSTEM) & Q(position__gt=0)),
                name="%(app_label)s_msg_system",
            ),
            models.CheckConstraint(
                condition=Q(role__in=Role.values), name="%(app_label)s_msg_role"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=Kind.values), name="%(app_label)s_msg_kind"
            ),
            models.CheckConstraint(
                condition=Q(status__in=MessageStatus.values), name="%(app_label)s_msg_status"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.position}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store the message for good.

        It is cleaned, counted and given the chat's next position, and moves the chat's
        totals in the same transaction; `message_saved` tells of it after the commit. Raises
        NotSupported for a stored row, except for the one system message.
        """
        if self._state.adding:
            self._ready()
            self._store(self._totals(), *args, **kwargs)
        elif kwargs.get("update_fields") and not set(kwargs["update_fields"]) - COUNTED:
            super().save(*args, **kwargs)
        elif self.role == SYSTEM and self.position == 0:
            self._replace(*args, **kwargs)
        else:
            raise self._refused()

    @classmethod
    def from_value(cls, value: Value, **links: Any) -> Self:
        """Make the unsaved row of a value; `links` are its foreign keys."""
        row = cls(**values.message_columns(value), **links)
        if row.answers_id is not None and row.extra:
            row.extra = {k: v for k, v in row.extra.items() if k != "tool_call_id"} or None
        row.new_calls = value.calls
        return row

    def value(self) -> Value:
        """Give the message as a value; a stored row asks for its calls."""
        calls = self.new_calls
        if not self._state.adding:
            calls = [call.value() for call in self.tool_calls.order_by("index")]
        answers = None if self.answers is None else self.answers.value().id
        return values.message_value(self, calls, answers)

    def withdrawal(self) -> dict[str, Any]:
        """Give what the chat's totals lose with this message; what was used stays used."""
        return {
            "message_count": Add(-1),
            "token_count": Add(-self.token_count),
        }

    def _ready(self) -> None:
        value = clean_message(values.message_value(self, self.new_calls))
        for name, column in values.message_columns(value).items():
            setattr(self, name, column)
        self.new_calls = value.calls
        if self.answers is not None:
            value = value.replace(tool_call_id=self.answers.value().id)
        self.token_count = min(tokens.estimate_message(value), usage.MOST)
        self.token_ruler = tokens.RULER

    def _totals(self) -> dict[str, Any]:
        used = {field.attname: getattr(self, field.attname) for field in self._meta.concrete_fields}
        now = timezone.now()
        return {
            "message_count": Add(1),
            "token_count": Add(self.token_count),
            "last_message_at": now,
            "updated": now,
            **usage.moves(used),
        }

    def _store(self, totals: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            self.position = self.place(totals) if self.place else self._take_place(totals, using)
            # Else one with the key of a stored row would be written over that.
            super().save(*args, **{**kwargs, "using": using, "force_insert": True})
            self._announce(using)

    def _replace(self, *args: Any, **kwargs: Any) -> None:
        """Put another text in the system message's place."""
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        # What this object says of itself may not be what is stored.
        stored = type(self)._base_manager.using(using).filter(pk=self.pk, chat=self.chat_id)
        if not stored.filter(role=SYSTEM, position=0).exists():
            raise self._refused()
        before = self.token_count
        self._ready()
        changes = {"token_count": Add(self.token_count - before)}
        with transaction.atomic(using=using, savepoint=False):
            if self.place is None:
                self._move(using, changes)
            else:
                self.place(changes)
            super().save(*args, **{**kwargs, "using": using})

    def _refused(self) -> NotSupported:
        return NotSupported(
            f"Stored messages are never changed: message {self.pk} of chat {self.chat_id}."
        )

    def _take_place(self, totals: dict[str, Any], using: str) -> int:
        """Take the chat's next position; the UPDATE holds the row, so that it is ours."""
        if self.role == SYSTEM:
            self._move(using, totals)
            return 0
        reserved = 1 + len(self.new_calls)
        self._move(using, {"next_position": Add(reserved), **totals})
        chat = self._chats()._base_manager.using(using).filter(pk=self.chat_id)
        after: int = chat.values_list("next_position", flat=True).get()
        return after - reserved

    def _move(self, using: str, changes: dict[str, Any]) -> None:
        compiled.update(self._chats(), using, {"pk": self.chat_id}, changes)

    def _chats(self) -> Any:
        return self._meta.get_field("chat").related_model

    def _announce(self, using: str) -> None:
        sender = type(self)
        if signals.message_saved.has_listeners(sender):
            transaction.on_commit(
                lambda: signals.message_saved.send_robust(sender, message=self),
                using=using,
                robust=True,
            )


class Message(AbstractMessage):
    """The package's own message."""

    class Meta(AbstractMessage.Meta):
        pass
