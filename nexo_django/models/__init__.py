"""The rows. Hosts that own their tables derive from the abstract bases."""

from __future__ import annotations

from nexo_django.models.attachment import AbstractAttachment, Attachment
from nexo_django.models.chat import AbstractChat, Chat
from nexo_django.models.compaction import AbstractCompaction, Compaction
from nexo_django.models.draft import AbstractDraft, Draft
from nexo_django.models.message import AbstractMessage, Message
from nexo_django.models.model import Model
from nexo_django.models.output import (
    AbstractSandboxFile,
    AbstractToolOutput,
    SandboxFile,
    ToolOutput,
)
from nexo_django.models.tables import Tables, tables
from nexo_django.models.tool_call import AbstractToolCall, ToolCall
from nexo_django.models.turn import AbstractTurn, Turn

__all__ = [
    "AbstractAttachment",
    "AbstractChat",
    "AbstractCompaction",
    "AbstractDraft",
    "AbstractMessage",
    "AbstractSandboxFile",
    "AbstractToolCall",
    "AbstractToolOutput",
    "AbstractTurn",
    "Attachment",
    "Chat",
    "Compaction",
    "Draft",
    "Message",
    "Model",
    "SandboxFile",
    "Tables",
    "ToolCall",
    "ToolOutput",
    "Turn",
    "tables",
]
