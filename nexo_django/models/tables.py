"""The models that keep a chat: the settings name the chat's, its relations the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.apps import apps

from nexo_django import conf

CHAT = "nexo_django.Chat"


@dataclass(frozen=True)
class Tables:
    """The model classes of one set of tables."""

    chat: Any
    turn: Any
    message: Any
    tool_call: Any
    compaction: Any
    output: Any
    file: Any
    attachment: Any
    draft: Any


def tables() -> Tables:
    """Give the models of NEXO["SESSION_CHAT_MODEL"], or the package's own."""
    return _tables(conf.get("SESSION_CHAT_MODEL") or CHAT)


@cache
def _tables(label: str) -> Tables:
    chat = apps.get_model(label)
    message = _related(chat, "messages")
    return Tables(
        chat=chat,
        turn=_related(chat, "turns"),
        message=message,
        tool_call=_related(message, "tool_calls"),
        compaction=_related(chat, "compactions"),
        output=_related(chat, "outputs"),
        file=_related(chat, "files"),
        attachment=_related(chat, "attachments"),
        draft=_related(chat, "draft"),
    )


def _related(model: Any, name: str) -> Any:
    return model._meta.get_field(name).related_model
