"""Deleting a chat with everything of it, in one transaction."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from nexo_django.leases import Lease
from nexo_django.models import Tables
from nexo_django.models.fields import delete_file


def remove(tables: Tables, alias: str, chat_id: int) -> dict[str, int] | None:
    """Delete a chat and count what went, by kind; None while a turn runs.

    Rows go by single statements in the order of their references, whatever their number;
    files go after the commit.
    """
    with transaction.atomic(using=alias):
        if not Lease(tables.chat, alias, chat_id).claim({}, current_compaction=None):
            return None
        files = _files(tables, alias, chat_id)
        gone = _rows(tables, alias, chat_id)
        transaction.on_commit(lambda: _delete(files), using=alias, robust=True)
    return {kind: n for kind, n in gone.items() if n or kind in _ALWAYS}


_ALWAYS = ("chats", "turns", "messages", "tool_calls")


def _rows(tables: Tables, alias: str, chat_id: int) -> dict[str, int]:
    def of(table: Any, **lookup: Any) -> Any:
        lookup = lookup or {"chat": chat_id}
        return table._base_manager.using(alias).filter(**lookup).order_by()

    of(tables.compaction).update(parent=None)
    of(tables.message).filter(answers__isnull=False).update(answers=None)
    return {
        "drafts": of(tables.draft)._raw_delete(alias),
        "outputs": of(tables.output)._raw_delete(alias),
        "files": of(tables.file)._raw_delete(alias),
        "attachments": of(tables.attachment)._raw_delete(alias),
        "compactions": of(tables.compaction)._raw_delete(alias),
        "tool_calls": of(tables.tool_call, message__chat=chat_id)._raw_delete(alias),
        "messages": of(tables.message)._raw_delete(alias),
        "turns": of(tables.turn)._raw_delete(alias),
        "chats": of(tables.chat, pk=chat_id)._raw_delete(alias),
    }


def _files(tables: Tables, alias: str, chat_id: int) -> list[Any]:
    return [
        row.file
        for table in (tables.output, tables.file, tables.attachment)
        for row in table._base_manager.using(alias).filter(chat=chat_id).exclude(file="")
    ]


def _delete(files: list[Any]) -> None:
    for file in files:
        delete_file(file)
