"""What every page of ours shares: rows are read, never added or changed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from nexo_django.admin.display import money, short


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page that shows rows to whoever may view them; rows come from sessions only."""

    list_per_page = 50
    show_full_result_count = False
    actions_on_top = False
    actions_on_bottom = True

    class Media:
        css = {"all": ("nexo_django/admin.css",)}

    @admin.display(description=_("cost"), ordering="cost")
    def price(self, row: Any) -> str:
        """What the row's model calls cost."""
        return money(row.cost)

    @admin.display(description=_("chat"), ordering="chat")
    def of_chat(self, row: Any) -> str:
        """Which chat the row belongs to, short enough for a list."""
        return short(str(row.chat))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a row that no session wrote would break the order of its chat."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: what was said is not changed afterwards."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: rows go with their chat."""
        return False
