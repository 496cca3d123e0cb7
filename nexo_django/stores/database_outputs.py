"""The whole text of results that were cut: kept with their chat, and read only through it."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from django.core.files.base import ContentFile
from django.db import transaction
from django.utils import timezone

from nexo_django import conf
from nexo_django.models import Tables
from nexo_django.models.output import INLINE_BYTES
from nexo_django.sanitize import clean_text


def keep(tables: Tables, alias: str, chat_id: int, text: str) -> Any:
    """Store a text, in a file when it is large; a rollback takes the file away again."""
    text = clean_text(text)
    data = text.encode()
    retention = conf.get("OUTPUT_RETENTION")
    row = tables.output(
        chat_id=chat_id,
        total_bytes=len(data),
        total_lines=text.count("\n") + 1 if text else 0,
        sha256=hashlib.sha256(data).hexdigest(),
        expires_at=None if retention is None else timezone.now() + retention,
    )
    if len(data) <= INLINE_BYTES:
        row.text = text
        row.save(using=alias, force_insert=True)
        return row
    row.file.save("output", ContentFile(data), save=False)
    try:
        with transaction.atomic(using=alias):
            row.save(using=alias, force_insert=True)
    except BaseException:
        row.file.storage.delete(row.file.name)
        raise
    return row


def read(tables: Tables, alias: str, chat_id: int, output_id: str) -> str | None:
    """Give a text of the chat, None when there is none of that id or it expired."""
    try:
        key = uuid.UUID(output_id)
    except (ValueError, AttributeError, TypeError):
        return None
    row = tables.output._base_manager.using(alias).filter(pk=key, chat=chat_id).first()
    if row is None or (row.expires_at is not None and row.expires_at <= timezone.now()):
        return None
    if not row.file:
        return row.text or ""
    with row.file.open("rb") as file:
        return bytes(file.read()).decode()
