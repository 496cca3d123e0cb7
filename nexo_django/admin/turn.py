"""Turns: what was asked when, how it ended and what it cost."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from nexo_django.admin.base import ReadOnlyAdmin
from nexo_django.models import Turn


@admin.register(Turn)
class TurnAdmin(ReadOnlyAdmin):
    list_display = ("of_chat", "number", "status", "error", "price", "started", "finished")
    list_display_links = ("of_chat", "number")
    list_filter = ("status", "started")
    list_select_related = ("chat",)
    search_fields = ("key__exact", "chat__instance_id__exact", "error__exact")
    search_help_text = _("The whole key, name of an instance or class of an error.")
    ordering = ("-pk",)
    fields = (
        "chat",
        "number",
        "key",
        "status",
        "error",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "price",
        "started",
        "finished",
    )
    readonly_fields = fields
