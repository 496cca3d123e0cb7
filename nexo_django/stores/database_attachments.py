"""Attached files of a chat in the database: the file first, then its row with the prompt's."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.core.files.base import ContentFile
from django.db import router

from nexo_django import connections
from nexo_django.exceptions import NotSupported, StoreFailed, is_abort
from nexo_django.media import Upload, from_part
from nexo_django.models import Tables
from nexo_django.models import tables as own_tables
from nexo_django.models.attachment import FOLDER, AttachmentStorage, attachment_path
from nexo_django.models.fields import delete_file
from nexo_django.stores.database_outputs import private

logger = logging.getLogger(__name__)
BATCH = 500


@contextmanager
def kept(tables: Tables, alias: str, files: Sequence[Upload]) -> Iterator[list[Any]]:
    """Write files and give their rows, for a transaction to store; else the files go again."""
    rows: list[Any] = []
    try:
        for file in files:
            # One by one: what was written before one fails must go again.
            rows.append(_written(tables, file))  # noqa: PERF401
        yield rows
    except BaseException:
        if rows:
            _forget(tables, alias, rows)
        raise


def store(alias: str, rows: Sequence[Any], prompt: Any) -> None:
    """Store the rows of a prompt's files, inside its transaction."""
    for row in rows:
        row.chat_id, row.message_id = prompt.chat_id, prompt.pk
    if rows:
        type(rows[0])._base_manager.using(alias).bulk_create(rows)


def read(tables: Tables, alias: str, chat_id: int, ids: Sequence[str]) -> dict[str, bytes]:
    """Give files of the chat by their ids, without those that are gone or not what they were."""
    found = {row.pk: row for row in _rows(tables, alias, chat=chat_id, pk__in=_keys(ids))}
    read = {str(key): _data(row) for key, row in found.items()}
    return {key: data for key, data in read.items() if data is not None}


def find(tables: Tables, alias: str, attachment_id: str, **chat: Any) -> Upload | None:
    """Give a file of the chat as its message's part tells of it."""
    rows = _rows(tables, alias, pk__in=_keys([attachment_id]), **chat)
    row = rows.select_related("message").first()
    data = None if row is None else _data(row)
    if row is None or data is None:
        return None
    parts = [part for part in row.message.parts or () if part.get("id") == str(row.pk)]
    return from_part(parts[0], data) if parts else None


def purge(before: datetime) -> int:
    """Delete files that were written before then and have no row, and count them.

    A process that is killed between a file and its row leaves one.
    """
    found = own_tables()
    alias = router.db_for_write(found.attachment)
    storage = AttachmentStorage().backend
    try:
        names = storage.listdir(FOLDER)[1]
        old = [n for n in names if storage.get_modified_time(f"{FOLDER}/{n}") < before]
    except FileNotFoundError:
        return 0
    except NotImplementedError:
        raise NotSupported(
            "The storage of attachments can't list its files; look for those without a row there."
        ) from None
    gone = 0
    for start in range(0, len(old), BATCH):
        gone += _purge(found, alias, storage, old[start : start + BATCH])
    return gone


def _purge(tables: Tables, alias: str, storage: Any, names: list[str]) -> int:
    paths = [f"{FOLDER}/{name}" for name in names]
    with connections.mapped("read"):
        stored = set(_rows(tables, alias, file__in=paths).values_list("file", flat=True))
    unknown = [path for path in paths if path not in stored]
    for path in unknown:
        storage.delete(path)
    return len(unknown)


def _rows(tables: Tables, alias: str, **lookup: Any) -> Any:
    return tables.attachment._base_manager.using(alias).filter(**lookup)


def _keys(ids: Sequence[str]) -> list[uuid.UUID]:
    keys = []
    for id_ in ids:
        try:
            keys.append(uuid.UUID(id_))
        except (ValueError, AttributeError, TypeError):
            continue
    return keys


def _written(tables: Tables, file: Upload) -> Any:
    row = tables.attachment(
        id=uuid.UUID(file.id),
        name=file.name,
        media_type=file.media_type,
        size=file.size,
        sha256=file.sha256,
    )
    try:
        storage = private(getattr(row.file.storage, "backend", row.file.storage))
        row.file = storage.save(attachment_path(row, ""), ContentFile(file.data))
    except Exception as error:  # a storage of the host's may raise anything
        if is_abort(error):
            raise
        raise StoreFailed(
            f"An attachment could not be kept ({type(error).__name__}); nothing was written."
        ) from error
    return row


def _data(row: Any) -> bytes | None:
    try:
        with row.file.open("rb") as file:
            data = bytes(file.read())
    except Exception as error:  # a storage of the host's may raise anything
        if is_abort(error):
            raise
        logger.warning("attachment=%s not read: %s", row.pk, type(error).__name__)
        return None
    if hashlib.sha256(data).hexdigest() != row.sha256:
        logger.warning("attachment=%s is not what it was; it is left out", row.pk)
        return None
    return data


def _forget(tables: Tables, alias: str, rows: Sequence[Any]) -> None:
    """Delete files whose rows were not stored; where nobody can tell, they stay."""
    try:
        stored = set(
            _rows(tables, alias, pk__in=[row.pk for row in rows]).values_list("pk", flat=True)
        )
    except Exception as error:
        logger.warning("%d file(s) of a prompt left: %s", len(rows), type(error).__name__)
        return
    for row in rows:
        if row.pk not in stored:
            delete_file(row.file)
