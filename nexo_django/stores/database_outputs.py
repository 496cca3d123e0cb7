"""The whole text of results that were cut: kept with their chat, and read only through it."""

from __future__ import annotations

import copy
import hashlib
import logging
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.db import router
from django.db.models import Q
from django.utils import timezone

from nexo_django import conf, connections
from nexo_django.exceptions import LeaseLost
from nexo_django.models import Tables, tables
from nexo_django.models.fields import delete_file
from nexo_django.models.output import INLINE_BYTES, output_path
from nexo_django.sanitize import clean_text
from nexo_django.truncation import count_lines

if TYPE_CHECKING:
    from nexo_django.stores.database_turn import DatabaseTurn

logger = logging.getLogger(__name__)


def keep(turn: DatabaseTurn, text: str) -> Any:
    """Store a text, in a file when it is large, and give its key.

    The row comes first: a file without one would never be deleted.
    """
    text = clean_text(text)
    data = text.encode()
    retention = conf.get("OUTPUT_RETENTION")
    row = turn.tables.output(
        chat_id=turn.row.chat_id,
        total_bytes=len(data),
        total_lines=count_lines(text),
        sha256=hashlib.sha256(data).hexdigest(),
        expires_at=None if retention is None else timezone.now() + retention,
    )
    large = len(data) > INLINE_BYTES
    row.text, row.file = (None, output_path(row, "")) if large else (text, "")
    with turn.writing():
        turn.fence()
        row.save(using=turn.alias, force_insert=True)
    if large:
        _write(turn, row, data)
    return row.pk


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
    try:
        with row.file.open("rb") as file:
            return bytes(file.read()).decode()
    except Exception as error:  # a storage of the host's may raise anything
        logger.warning("output=%s not read: %s", key, type(error).__name__)
        return None


def purge(now: datetime, batch_size: int) -> int:
    """Delete what expired, and count it; a row whose file can't be deleted stays."""
    found = tables()
    alias = router.db_for_write(found.output)
    outputs = found.output._base_manager.using(alias)
    gone = 0
    for batch in _expired(outputs, now, batch_size):
        # The files first: without its row nobody would know of one.
        keys = [row.pk for row in batch if delete_file(row.file)]
        with connections.mapped():
            gone += outputs.filter(pk__in=keys).delete()[0] if keys else 0
    return gone


def _expired(outputs: Any, now: datetime, batch_size: int) -> Iterator[list[Any]]:
    after = Q()
    while True:
        rows = outputs.filter(after, expires_at__lt=now).only("expires_at", "file")
        with connections.mapped("read"):
            batch = list(rows.order_by("expires_at", "pk")[:batch_size])
        if batch:
            yield batch
        if len(batch) < batch_size:
            return
        last = batch[-1]
        after = Q(expires_at__gt=last.expires_at) | Q(expires_at=last.expires_at, pk__gt=last.pk)


def _write(turn: DatabaseTurn, row: Any, data: bytes) -> None:
    """Write the file that a stored row names, outside any transaction."""
    rows = turn.tables.output._base_manager.using(turn.alias).filter(pk=row.pk)
    try:
        storage = private(row.file.storage)
        name = storage.save(row.file.name, ContentFile(data))
    except BaseException:
        with turn.writing():
            rows.delete()
        raise
    with turn.writing():
        stored = rows.update(file=name)
    if not stored:
        # The chat was deleted meanwhile.
        storage.delete(name)
        raise LeaseLost(f"Turn {turn.number} no longer holds its session; nothing was kept.")


def private(storage: Any) -> Any:
    """Give a storage that lets only the owner read what it makes, where it makes files here."""
    if not isinstance(storage, FileSystemStorage):
        return storage
    Path(storage.location).mkdir(parents=True, exist_ok=True)
    private: Any = copy.copy(storage)
    private.file_permissions_mode, private.directory_permissions_mode = 0o600, 0o700
    return private
