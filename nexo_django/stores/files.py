"""Where the files of a chat are kept without a database, and by whom they may be written."""

from __future__ import annotations

import builtins
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nexo_django.exceptions import ToolError
from nexo_django.sandbox.files import OWN, FileInfo, FileStore, HeldFiles, digest, keepable

__all__ = ["OWN", "FileInfo", "FileStore", "FolderFiles", "HeldFiles", "OwnedFiles"]

_HEADER_BYTES = 8192


@dataclass(frozen=True)
class FolderFiles:
    """Files in a directory that only its owner can look into.

    Each is one file, named by the digest of its path, which a first line tells: a model's
    path never becomes one here. It is replaced at once or not at all.
    """

    directory: Path

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        with _failing("read"):
            try:
                with self._place(keepable(path)).open("rb") as file:
                    file.readline(_HEADER_BYTES)
                    return file.read()
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes) -> None:
        """Keep a file."""
        info = FileInfo(keepable(path), len(data), digest(data))
        place = self._place(path)
        temporary = place.with_name(f"{place.name}.{threading.get_ident()}.tmp")
        with _failing("written"):
            self.directory.mkdir(mode=0o700, exist_ok=True)
            try:
                with open(temporary, "wb", opener=_for_owner) as file:
                    file.write(json.dumps(info).encode() + b"\n" + data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(place)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(self.directory)

    def remove(self, path: str) -> bool:
        """Delete a file."""
        with _failing("removed"):
            try:
                self._place(keepable(path)).unlink()
            except FileNotFoundError:
                return False
            _sync(self.directory)
            return True

    def list(self) -> builtins.list[FileInfo]:
        """Give every file."""
        with _failing("read"):
            return sorted(info for place in self._places() if (info := _info(place)))

    def delete(self) -> None:
        """Delete all of them."""
        for place in self._places():
            place.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.directory.rmdir()

    def _place(self, path: str) -> Path:
        return self.directory / digest(path.encode())

    def _places(self) -> builtins.list[Path]:
        try:
            return list(self.directory.iterdir())
        except FileNotFoundError:
            return []


class OwnedFiles:
    """The files of a turn's chat: whoever lost the chat can't write them any more."""

    def __init__(
        self, files: FileStore, lock: AbstractContextManager[Any], owned: Callable[[], object]
    ) -> None:
        self._files, self._lock, self._owned = files, lock, owned

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        return self._files.read(path)

    def write(self, path: str, data: bytes) -> None:
        """Keep a file."""
        with self._lock:
            self._owned()
            self._files.write(path, data)

    def remove(self, path: str) -> bool:
        """Delete a file."""
        with self._lock:
            self._owned()
            return self._files.remove(path)

    def list(self) -> builtins.list[FileInfo]:
        """Give every file."""
        return self._files.list()


def _info(place: Path) -> FileInfo | None:
    with suppress(OSError, ValueError, TypeError):
        if place.suffix != ".tmp":
            with place.open("rb") as file:
                return FileInfo(*json.loads(file.readline(_HEADER_BYTES)))
    return None


@contextmanager
def _failing(verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Its own text would name the directory.
        said = error.strerror or type(error).__name__
        raise ToolError(f"A file of the chat could not be {verb}: {said}.") from error


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
