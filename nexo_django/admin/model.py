"""Language models: what the catalogue said when a chat first used one."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from nexo_django.admin.base import ReadOnlyAdmin
from nexo_django.admin.display import block, pretty
from nexo_django.models import Model


@admin.register(Model)
class ModelAdmin(ReadOnlyAdmin):
    list_display = ("provider", "model_id", "context_window", "max_output_tokens", "unlisted_at")
    list_display_links = ("provider", "model_id")
    search_fields = ("model_id__startswith", "provider__exact")
    ordering = ("provider", "model_id")
    fields = (
        "provider",
        "model_id",
        "name",
        "family",
        "context_window",
        "max_output_tokens",
        "prices_text",
        "capabilities_text",
        "modalities_text",
        "unlisted_at",
        "created",
    )
    readonly_fields = fields

    @admin.display(description=_("prices"))
    def prices_text(self, model: Model) -> str:
        """The prices, in US dollars a token."""
        return block(pretty(model.prices))

    @admin.display(description=_("capabilities"))
    def capabilities_text(self, model: Model) -> str:
        """What the model can do."""
        return block(pretty(model.capabilities))

    @admin.display(description=_("modalities"))
    def modalities_text(self, model: Model) -> str:
        """What the model takes and gives."""
        return block(pretty(model.modalities))
