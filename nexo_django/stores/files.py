"""The files of a chat: what its virtual sandbox holds, and what tools keep from turn to turn.

They are kept with the chat and go with it. Paths that begin with `.nexo/` are the app's own.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from nexo_django.exceptions import ToolError, brief

OWN = ".nexo/"
MAX_PATH = 512
_HEADER_BYTES = 8192


class FileInfo(NamedTuple):
    """A kept file, without its content."""

    path: str
    size: int
    sha256: str


class FileStore(Protocol):
    """The files of one chat, by path; any thread of the turn may use it.

    A path is a key: it is compared byte for byte and nothing in it is resolved. What is
    written is committed when the method returns, and refused with LeaseLost once another turn
    has taken the chat over. Raises ToolError for a path that can't be kept.
    """

    def read(self, path: str) -> bytes | None:
        """Give a file's content, None when there is none of that path."""

    def write(self, path: str, data: bytes) -> None:
        """Keep a file, in place of one of the same path."""

    def remove(self, path: str) -> bool:
        """Delete a file; False when there is none of that path."""

    def list(self) -> builtins.list[FileInfo]:
        """Give every file, in the order of their paths."""


def keepable(path: str) -> str:
    """Give a path that every store can keep, or raise ToolError."""
    if not isinstance(path, str) or not path or len(path) > MAX_PATH:
        raise ToolError(f"The path must be a text of 1 to {MAX_PATH} characters.")
    if "\x00" in path or any("\ud800" <= char <= "\udfff" for char in path):
        raise ToolError(f"The path {brief(path)} holds characters that no path may have.")
    return path


def digest(data: bytes) -> str:
    """Give the SHA-256 that tells one content from another."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class HeldFiles:
    """Files in the process's memory."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        return self.contents.get(path)

    def write(self, path: str, data: bytes) -> None:
        """Keep a file."""
        self.contents[keepable(path)] = bytes(data)

    def remove(self, path: str) -> bool:
        """Delete a file."""
        return self.contents.pop(path, None) is not None

    def list(self) -> builtins.list[FileInfo]:
        """Give every file."""
        # A copy: another thread may write meanwhile.
        kept = sorted(dict(self.contents).items())
        return [FileInfo(path, len(data), digest(data)) for path, data in kept]


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
        self, files: FileStore, lock: threading.RLock, owned: Callable[[], object]
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


def shown(files: FileStore) -> Iterator[FileInfo]:
    """Give the files that are not the app's own."""
    return (info for info in files.list() if not info.path.startswith(OWN))
