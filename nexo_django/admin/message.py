"""Messages and tool calls on their own pages; lists read no more than the beginning of a text."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from nexo_django.admin.base import ReadOnlyAdmin
from nexo_django.admin.decision import DecidingAdmin, may_decide, waiting
from nexo_django.admin.display import PREVIEW, WHOLE, block, pretty, preview, short
from nexo_django.models import Message, ToolCall


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = (
        "of_chat",
        "position",
        "role",
        "preview",
        "kind",
        "status",
        "model_name",
        "created",
    )
    list_display_links = ("position", "preview")
    list_filter = ("role", "kind", "status", "is_error", "created")
    list_select_related = ("chat",)
    search_fields = ("chat__instance_id__exact", "chat__agent_name__exact")
    search_help_text = _("The whole name of an instance or an agent.")
    ordering = ("-pk",)
    fields = (
        "chat",
        "turn",
        "position",
        "role",
        "kind",
        "status",
        "is_error",
        "text",
        "parts_text",
        "reasoning_text",
        "answers",
        "model",
        "model_name",
        "finish_reason",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "price",
        "usage_text",
        "created",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Give the messages with the beginning of their texts only."""
        rows: QuerySet[Any] = super().get_queryset(request)
        in_list = request.resolver_match is not None and (
            request.resolver_match.url_name == "nexo_django_message_changelist"
        )
        rows = rows.annotate(
            beginning=Left("content", PREVIEW * 4 if in_list else WHOLE), length=Length("content")
        )
        return rows.defer("content", *(("parts", "reasoning", "raw_usage") if in_list else ()))

    @admin.display(description=_("text"))
    def preview(self, message: Any) -> str:
        """The beginning of the text, on one line."""
        return preview(message.beginning)

    @admin.display(description=_("text"))
    def text(self, message: Any) -> str:
        """The text."""
        return block(message.beginning, message.length)

    @admin.display(description=_("parts"))
    def parts_text(self, message: Message) -> str:
        """The parts, as text."""
        return block(pretty(message.parts))

    @admin.display(description=_("reasoning"))
    def reasoning_text(self, message: Message) -> str:
        """What the model thought aloud, as the provider gave it."""
        return block(pretty(message.reasoning))

    @admin.display(description=_("usage"))
    def usage_text(self, message: Message) -> str:
        """The provider's own report."""
        return block(pretty(message.raw_usage))


@admin.register(ToolCall)
class ToolCallAdmin(DecidingAdmin, ReadOnlyAdmin):
    list_display = ("name", "short_id", "of_chat", "status", "started", "finished")
    list_display_links = ("name", "short_id")
    list_filter = ("status", "started")
    list_select_related = ("message__chat",)
    search_fields = ("name__exact", "call_id__exact", "message__chat__instance_id__exact")
    search_help_text = _("The whole name of a tool, id of a call or name of an instance.")
    ordering = ("-pk",)
    fields = (
        "message",
        "index",
        "call_id",
        "name",
        "arguments_text",
        "raw_text",
        "status",
        "decided_by",
        "decided_at",
        "decision_reason",
        "started",
        "finished",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Give the calls; lists and pages need nothing of their messages' texts."""
        return super().get_queryset(request).defer("message__content", "message__reasoning")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons for a call that waits."""
        call = kwargs.get("obj")
        if call is not None:
            found = waiting(ToolCall._default_manager.filter(pk=call.pk))
            context |= {"waiting": found, "may_decide": may_decide(request)}
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("id"), ordering="call_id")
    def short_id(self, call: ToolCall) -> str:
        """The provider's id of the call, short enough for a list."""
        return short(call.call_id)

    @admin.display(description=_("chat"))
    def of_chat(self, call: ToolCall) -> str:
        """The chat of the call, short enough for a list."""
        return short(str(call.message.chat))

    @admin.display(description=_("arguments"))
    def arguments_text(self, call: ToolCall) -> str:
        """The arguments, as text."""
        return block(pretty(call.arguments))

    @admin.display(description=_("raw arguments"))
    def raw_text(self, call: ToolCall) -> str:
        """The arguments as the model wrote them, when they were no JSON object."""
        return block(call.raw_arguments)
