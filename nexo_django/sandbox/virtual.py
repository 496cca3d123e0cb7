"""The virtual sandbox: files that exist only with their chat, and no shell."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import islice

from nexo_django.exceptions import ToolError, brief
from nexo_django.sandbox.base import MAX_ENTRIES, MAX_FILE_BYTES, Entry, Place, Sandbox
from nexo_django.sandbox.files import OWN, FileInfo, FileStore, HeldFiles, keepable, shown
from nexo_django.sandbox.paths import file_inside, inside


class VirtualSandbox(Sandbox):
    """Files in the store of the chat: no path of the machine can be reached through it.

    Without a chat they are in memory, as long as the object. `max_bytes` is for all files
    of a chat, `max_files` for their number.
    """

    name = "virtual"

    def __init__(
        self,
        files: FileStore | None = None,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_bytes: int = 100_000_000,
        max_files: int = 2000,
    ) -> None:
        super().__init__()
        self.files = HeldFiles() if files is None else files
        self.max_file_bytes, self.max_bytes, self.max_files = max_file_bytes, max_bytes, max_files

    def for_chat(self, place: Place) -> VirtualSandbox:
        """Give the sandbox with the chat's files and this one's limits."""
        return type(self)(
            place.files,
            max_file_bytes=self.max_file_bytes,
            max_bytes=self.max_bytes,
            max_files=self.max_files,
        )

    def inside(self, path: str) -> str:
        """Give the one name of a path, with its accents written in one way."""
        return unicodedata.normalize("NFC", inside(path))

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        return self.files.read(_path(path))

    def write(self, path: str, data: bytes) -> None:
        """Write a file, if it is within the limits."""
        kept = _path(path)
        with self.lock:
            self._refuse(kept, len(data))
            self.files.write(kept, data)

    def remove(self, path: str) -> bool:
        """Delete a file; folders are there only while they hold one."""
        with self.lock:
            return self.files.remove(_path(path))

    def entries(self) -> Iterator[Entry]:
        """Give the files."""
        return (Entry(i.path, i.size) for i in islice(shown(self.files), MAX_ENTRIES))

    def describe(self) -> str:
        """Say what the tools work in."""
        return "Files are kept with this conversation; there is nothing else to see."

    def _refuse(self, path: str, size: int) -> None:
        if size > self.max_file_bytes:
            raise ToolError(
                f"The file would have {size} bytes; a file may have {self.max_file_bytes}."
            )
        others = [info for info in shown(self.files) if info.path != path]
        if len(others) >= self.max_files:
            raise ToolError(f"There are {len(others)} files, and no more are kept; remove some.")
        if sum(info.size for info in others) + size > self.max_bytes:
            raise ToolError(f"The files may have {self.max_bytes} bytes together; remove some.")
        _refuse_crossed(path, others)


def _path(path: str) -> str:
    # One name must not be two files because its accents are written in two ways.
    found = keepable(unicodedata.normalize("NFC", file_inside(path)))
    if f"{found}/".startswith(OWN):
        raise ToolError(f"{brief(OWN)} is the application's own.")
    return found


def _refuse_crossed(path: str, others: list[FileInfo]) -> None:
    """Raise for a file where a folder is, or in a file."""
    for info in others:
        if info.path.startswith(f"{path}/"):
            raise ToolError(f"{brief(path)} is a folder.")
        if path.startswith(f"{info.path}/"):
            raise ToolError(f"{brief(info.path)} is a file; nothing can be in it.")
