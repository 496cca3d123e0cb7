"""Approving and denying calls that wait, by staff with a permission of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import path, reverse
from django.utils.translation import gettext

from nexo_django import deciding
from nexo_django.admin.display import pretty, short
from nexo_django.admin.transcript import Text
from nexo_django.decisions import APPROVED, AWAITING, AWAITING_APPROVAL, DENIED
from nexo_django.exceptions import NexoError
from nexo_django.models import Chat, ToolCall, Turn
from nexo_django.stores.choice import store_for

PERMISSION = "nexo_django.decide_toolcall"
VERBS = {"approve": APPROVED, "deny": DENIED}


@dataclass(frozen=True)
class Waiting:
    """A call that waits, as a page shows it."""

    row: ToolCall
    arguments: Text | None

    @property
    def decidable(self) -> bool:
        """Whether staff decides on it, rather than the user who is asked."""
        return self.row.status == AWAITING_APPROVAL


def waiting(calls: QuerySet[ToolCall]) -> list[Waiting]:
    """Give those of the calls that wait."""
    rows = calls.filter(status__in=AWAITING).order_by("message__position", "index")
    return [Waiting(row, Text.of(pretty(row.arguments))) for row in rows]


def of_chat(chat: Chat) -> list[Waiting]:
    """Give the calls of a chat that wait; only an unfinished turn has some."""
    if chat.open_turn is None:
        return []
    turn = {"message__chat": chat, "message__turn__number": chat.open_turn}
    return waiting(ToolCall._default_manager.filter(**turn))


def awaits() -> Exists:
    """Tell, in a queryset of chats, whether a call of the unfinished turn waits."""
    turns = Turn._default_manager.filter(chat=OuterRef("pk"), number=OuterRef("open_turn"))
    return Exists(turns.filter(status__in=AWAITING))


def may_decide(request: HttpRequest) -> bool:
    """Whether the user may approve and deny calls."""
    return request.user.has_perm(PERMISSION)


class DecidingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """What lets staff decide on a call by a POST; the row is changed in no other way."""

    def get_urls(self) -> list[Any]:
        """Give the usual addresses, and the one that takes decisions."""
        view: Callable[..., HttpResponse] = self.admin_site.admin_view(self.decide_view)
        return [
            path("<int:pk>/decide/", view, name="nexo_django_toolcall_decide"),
            *super().get_urls(),
        ]

    def decide_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Record what the user decided, with the username, and go back to the chat."""
        if not may_decide(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb = VERBS.get(request.POST.get("decision", ""))
        if verb is None:
            return HttpResponseBadRequest("decision is approve or deny.")
        rows = ToolCall._default_manager.select_related("message__chat")
        row = rows.defer("message__content").filter(pk=pk).first()
        if row is None:
            messages.error(request, gettext("There is no such call any more."))
            return HttpResponseRedirect(reverse("admin:index"))
        self._decide(request, row, verb)
        return HttpResponseRedirect(_back(request, row))

    def _decide(self, request: HttpRequest, row: ToolCall, verb: str) -> None:
        chat, name = row.message.chat, short(row.name)
        if row.status != AWAITING_APPROVAL:
            # An id may be one of a later step's too.
            says = gettext("%(call)s waits for no approval: it is %(status)s.")
            shown = {"call": name, "status": row.get_status_display()}
            messages.error(request, says % shown)
            return
        who, reason = request.user.get_username(), request.POST.get("reason", "")
        stored = store_for("database").chat(chat.agent_name, chat.instance_id)
        try:
            made = deciding.decision(verb, who[:191], reason if verb == DENIED else "")
            call_id = row.value().id
            deciding.decide(stored, chat.agent_name, chat.instance_id, call_id, made)
        except NexoError as error:
            messages.error(request, str(error))
            return
        self.log_change(request, row, verb)
        says = (
            gettext("%(call)s was approved.")
            if verb == APPROVED
            else gettext("%(call)s was denied.")
        )
        messages.success(request, says % {"call": name})


def _back(request: HttpRequest, row: ToolCall) -> str:
    """Give the page of the chat, or the call's where the user may not see chats."""
    if request.user.has_perm("nexo_django.view_chat"):
        return reverse("admin:nexo_django_chat_change", args=[row.message.chat_id])
    if request.user.has_perm("nexo_django.view_toolcall"):
        return reverse("admin:nexo_django_toolcall_change", args=[row.pk])
    return reverse("admin:index")
