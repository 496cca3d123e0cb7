"""The admin: chats that read like conversations; nothing in it can be changed."""

from __future__ import annotations

from nexo_django.admin.chat import ChatAdmin
from nexo_django.admin.message import MessageAdmin, ToolCallAdmin
from nexo_django.admin.model import ModelAdmin
from nexo_django.admin.turn import TurnAdmin

__all__ = ["ChatAdmin", "MessageAdmin", "ModelAdmin", "ToolCallAdmin", "TurnAdmin"]
