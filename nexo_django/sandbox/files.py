"""The files of a chat: what the virtual sandbox holds, and what tools keep from turn to turn.

They are kept with the chat and go with it. Paths that begin with `.nexo/` are the app's own.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nexo_django.exceptions import ToolError, brief

OWN = ".nexo/"
MAX_PATH = 512


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


def shown(files: FileStore) -> Iterator[FileInfo]:
    """Give the files that are not the app's own."""
    return (info for info in files.list() if not info.path.startswith(OWN))
