"""The files of a chat in the database; what is large is in Django's file storage.

A stored file is never without a row that names it, so that it goes with its chat whatever is
killed: a new one is announced by a row of its own before it is written, and one that was
replaced keeps such a row until it is deleted.
"""

from __future__ import annotations

import builtins
import logging
import threading
import uuid
from typing import TYPE_CHECKING, Any

from django.core.files.base import ContentFile

from nexo_django import connections
from nexo_django.exceptions import ToolError, is_abort
from nexo_django.models.fields import delete_file
from nexo_django.models.output import INLINE_BYTES, sandbox_path
from nexo_django.sandbox.files import OWN, FileInfo, digest, keepable
from nexo_django.stores.database_outputs import private

if TYPE_CHECKING:
    from nexo_django.stores.database_turn import DatabaseTurn

logger = logging.getLogger(__name__)

# Where the rows are of files that are not whole yet, or not wanted any more.
ASIDE = f"{OWN}.aside/"


class DatabaseFiles:
    """The files of an open turn's chat; see FileStore."""

    def __init__(self, turn: DatabaseTurn) -> None:
        self._turn, self._lock = turn, threading.Lock()

    def read(self, path: str) -> bytes | None:
        """Give a file's content, None when there is none of that path."""
        keepable(path)
        try:
            with connections.mapped("read"):
                row = self._rows().filter(path=path).first()
        finally:
            self._turn.give_back()
        if row is None or path.startswith(ASIDE):
            return None
        return _stored(row) if row.file else bytes(row.content or b"")

    def write(self, path: str, data: bytes) -> None:
        """Keep a file, in place of one of the same path."""
        values = {"size": len(data), "sha256": digest(data)}
        with self._lock:
            if len(data) <= INLINE_BYTES:
                self._put(keepable(path), {**values, "content": data, "file": ""}, None)
                return
            self._sweep()
            row = self._announced()
            name = self._saved(row, data)
            self._put(keepable(path), {**values, "content": None, "file": name}, row)

    def remove(self, path: str) -> bool:
        """Delete a file; False when there is none of that path."""
        with self._lock:
            with self._turn.writing():
                self._turn.fence()
                row = self._rows().filter(path=keepable(path)).first()
                if row is None:
                    return False
                if row.file:
                    self._rows().filter(pk=row.pk).update(path=_aside())
                else:
                    self._rows().filter(pk=row.pk)._raw_delete(self._turn.alias)
            if row.file:
                self._forget(row.pk, row.file)
            return True

    def list(self) -> builtins.list[FileInfo]:
        """Give every file, in the order of their paths."""
        try:
            with connections.mapped("read"):
                found = list(self._rows().values_list("path", "size", "sha256"))
        finally:
            self._turn.give_back()
        # Sorted here: databases order by collations of their own.
        return sorted(FileInfo(*row) for row in found if not row[0].startswith(ASIDE))

    def _put(self, path: str, values: dict[str, Any], announced: Any) -> None:
        """Make the row of that path say this, at once with what becomes of the other rows."""
        with self._turn.writing():
            self._turn.fence()
            row = self._rows().filter(path=path).only("pk", "file").first()
            old = row.file if row is not None and row.file else None
            if row is None:
                self._turn.tables.file(**self._new(path), **values).save(
                    using=self._turn.alias, force_insert=True
                )
            else:
                self._rows().filter(pk=row.pk).update(**values)
            aside = self._set_aside(announced, old)
        if aside is not None:
            self._forget(aside.pk, old)

    def _set_aside(self, announced: Any, old: Any) -> Any:
        """Give the row that names the replaced file now, None when there is none."""
        if old is None:
            if announced is not None:
                self._rows().filter(pk=announced.pk)._raw_delete(self._turn.alias)
            return None
        if announced is None:
            announced = self._turn.tables.file(**self._new(_aside()), file=old.name)
            announced.save(using=self._turn.alias, force_insert=True)
        else:
            self._rows().filter(pk=announced.pk).update(file=old.name)
        return announced

    def _announced(self) -> Any:
        row = self._turn.tables.file(**self._new(_aside()))
        row.file = sandbox_path(row, "")
        with self._turn.writing():
            self._turn.fence()
            row.save(using=self._turn.alias, force_insert=True)
        return row

    def _saved(self, row: Any, data: bytes) -> str:
        """Write the file that a row announces, outside any transaction, and give its name."""
        try:
            return str(private(row.file.storage).save(row.file.name, ContentFile(data)))
        except Exception as error:  # a storage of the host's may raise anything
            if is_abort(error):
                raise
            self._forget(row.pk, row.file)
            raise ToolError(
                f"A file could not be written to the storage: {type(error).__name__}."
            ) from error

    def _sweep(self) -> None:
        """Delete what a killed turn left aside; only the owner of the chat comes here."""
        with connections.mapped("read"):
            rows = list(self._rows().filter(path__startswith=ASIDE))
        for row in rows:
            self._forget(row.pk, row.file)

    def _forget(self, key: Any, file: Any) -> None:
        """Delete a file and then the row that names it; it stays for later where that fails."""
        if delete_file(file):
            with self._turn.writing():
                self._turn.fence()
                self._rows().filter(pk=key)._raw_delete(self._turn.alias)

    def _new(self, path: str) -> dict[str, Any]:
        return {"chat_id": self._turn.row.chat_id, "path": path}

    def _rows(self) -> Any:
        files = self._turn.tables.file._base_manager.using(self._turn.alias)
        return files.filter(chat=self._turn.row.chat_id).order_by()


def _aside() -> str:
    return f"{ASIDE}{uuid.uuid4().hex}"


def _stored(row: Any) -> bytes:
    try:
        with row.file.open("rb") as file:
            data = bytes(file.read())
    except Exception as error:  # a storage of the host's may raise anything
        if is_abort(error):
            raise
        raise ToolError(
            f"A file could not be read from the storage: {type(error).__name__}."
        ) from error
    if digest(data) != row.sha256:
        raise ToolError("A file in the storage is not what was stored; it was changed there.")
    return data
