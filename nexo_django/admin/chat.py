"""Chats: found by agent, instance, user, state and date; shown as a conversation; deleted whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import actions as usual
from django.contrib.auth import get_user_model
from django.db.models import BooleanField, Case, Q, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from nexo_django import registry
from nexo_django.admin.base import ReadOnlyAdmin
from nexo_django.admin.decision import awaits, may_decide, of_chat
from nexo_django.admin.display import block, pretty, short
from nexo_django.admin.transcript import transcript
from nexo_django.exceptions import SessionBusy
from nexo_django.models import Chat
from nexo_django.models.clock import DatabaseTime
from nexo_django.stores.choice import store_for

LISTED = 100
RUNNING, AWAITING, OPEN, SETTLED = "running", "awaiting", "open", "settled"
STATES = {
    RUNNING: _("running"),
    AWAITING: _("awaiting a decision"),
    OPEN: _("unfinished turn"),
    SETTLED: _("settled"),
}


class AgentFilter(admin.SimpleListFilter):
    """Chats of one registered agent; looking for the others' names would read every row."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Give the registered agents."""
        return [(name, name) for name in registry.agents()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the chats of the chosen agent."""
        name = self.value()
        return queryset.filter(agent_name=name) if name in registry.agents() else queryset


class StateFilter(admin.SimpleListFilter):
    """Chats by whether a turn runs or waits to be continued."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Give the states."""
        return list(STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the chats in the chosen state."""
        if self.value() not in STATES:
            return queryset
        if self.value() == RUNNING:
            return queryset.filter(running=True)
        if self.value() == AWAITING:
            return queryset.filter(awaits(), running=False)
        return queryset.filter(running=False, open_turn__isnull=self.value() == SETTLED)


@admin.register(Chat)
class ChatAdmin(ReadOnlyAdmin):
    list_display = (
        "agent",
        "instance",
        "user",
        "state",
        "last_message_at",
        "message_count",
        "tokens",
        "price",
    )
    list_display_links = ("agent", "instance")
    list_filter = (AgentFilter, StateFilter, "last_message_at", "created")
    list_select_related = ("user",)
    ordering = ("-last_message_at",)
    actions = ("delete_selected",)
    search_help_text = _("The beginning of an instance, an agent's whole name, or a user's.")
    fieldsets = (
        (None, {"fields": ("agent_name", "instance_id", "user", "state", "model")}),
        (
            _("Sums"),
            {
                "classes": ("collapse",),
                "fields": (
                    "message_count",
                    "input_tokens",
                    "output_tokens",
                    "cached_tokens",
                    "cache_write_tokens",
                    "reasoning_tokens",
                    "price",
                ),
            },
        ),
        (
            _("Details"),
            {
                "classes": ("collapse",),
                "fields": ("details", "lease_expires_at", "last_message_at", "created", "updated"),
            },
        ),
    )

    @admin.display(description=_("agent"), ordering="agent_name")
    def agent(self, chat: Chat) -> str:
        """The agent's name, short enough for a list."""
        return short(chat.agent_name)

    @admin.display(description=_("instance"), ordering="instance_id")
    def instance(self, chat: Chat) -> str:
        """The instance id, short enough for a list."""
        return short(chat.instance_id)

    @admin.display(description=_("state"))
    def state(self, chat: Any) -> Any:
        """Whether a turn runs, or waits to be continued."""
        if chat.running:
            return STATES[RUNNING]
        if chat.awaiting:
            return STATES[AWAITING]
        return STATES[SETTLED if chat.open_turn is None else OPEN]

    @admin.display(description=_("tokens"))
    def tokens(self, chat: Chat) -> str:
        """What the chat's model calls used."""
        return f"{chat.input_tokens + chat.output_tokens:,}"

    @admin.display(description=_("metadata"))
    def details(self, chat: Chat) -> str:
        """The metadata, as text."""
        return block(pretty(chat.metadata))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Give the chats, each with whether a turn runs by the database's clock."""
        leased = ~Q(lease_token="") & Q(lease_expires_at__gte=DatabaseTime())
        running = Case(
            When(leased, then=Value(True)), default=Value(False), output_field=BooleanField()
        )
        chats: QuerySet[Any] = (
            super().get_queryset(request).annotate(running=running, awaiting=awaits())
        )
        return chats

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Give lookups that match from the beginning; the text of messages is not searched."""
        user = get_user_model().USERNAME_FIELD
        return ("instance_id__startswith", "agent_name__exact", f"user__{user}__exact")

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the page of the conversation that was asked for."""
        chat = kwargs.get("obj")
        if chat is not None:
            page = transcript(chat, _position(request, "before"), _position(request, "after"))
            context |= {
                "transcript": page,
                "waiting": of_chat(chat),
                "may_decide": may_decide(request),
                "earlier": _link(request, "before", page.before),
                "later": _link(request, "after", page.after),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Follow the permission to delete chats."""
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Count what would go; a list of every message could be of any length."""
        chats = list(objs[: LISTED + 1] if isinstance(objs, QuerySet) else objs)
        names = [str(chat) for chat in chats[:LISTED]]
        if len(chats) > LISTED:
            names.append("…")
        total = sum(chat.message_count for chat in chats)
        return names, {gettext("chats"): len(chats), gettext("messages"): total}, set(), []

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Delete a chat, unless a turn of it runs."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except SessionBusy as busy:
            messages.error(request, str(busy))
            return HttpResponseRedirect(reverse("admin:nexo_django_chat_change", args=[object_id]))

    def delete_model(self, request: HttpRequest, obj: Chat) -> None:
        """Delete a chat with everything of it, as `session.delete()` does."""
        store_for("database").chat(obj.agent_name, obj.instance_id).delete()

    # In the place of the usual one, which would load every message.
    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: Any) -> Any:
        """Delete the chosen chats."""
        return delete_chats(self, request, queryset)


def delete_chats(model_admin: ChatAdmin, request: HttpRequest, queryset: Any) -> Any:
    """Ask, then delete the chosen chats but those in which a turn runs."""
    if not request.POST.get("post"):
        return usual.delete_selected(model_admin, request, queryset)
    # Keys first: no cursor stays open over the deletions.
    keys = list(queryset.values_list("pk", flat=True))
    found = (chat for key in keys if (chat := queryset.filter(pk=key).first()))
    deleted, busy = _delete(model_admin, request, found)
    if deleted:
        text = ngettext("%d chat was deleted.", "%d chats were deleted.", deleted) % deleted
        messages.success(request, text)
    for name in busy:
        messages.error(request, gettext("%s was not deleted: a turn of it runs.") % name)
    return None


def _delete(
    model_admin: ChatAdmin, request: HttpRequest, chats: Iterable[Chat]
) -> tuple[int, list[str]]:
    deleted, busy = 0, []
    for chat in chats:
        try:
            model_admin.delete_model(request, chat)
        except SessionBusy:
            busy.append(str(chat))
            continue
        model_admin.log_deletions(request, [chat])  # type: ignore[arg-type]
        deleted += 1
    return deleted, busy


def _position(request: HttpRequest, name: str) -> int | None:
    value = request.GET.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def _link(request: HttpRequest, name: str, position: int | None) -> str:
    if position is None:
        return ""
    query = request.GET.copy()
    for key in ("before", "after"):
        query.pop(key, None)
    query[name] = str(position)
    return f"?{query.urlencode()}#transcript"
