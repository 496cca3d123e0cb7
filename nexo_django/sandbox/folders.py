"""The sandboxes whose files lie in a folder: what they share, for one folder and for one each chat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nexo_django.sandbox import workspaces
from nexo_django.sandbox.base import MAX_FILE_BYTES, Entry, Sandbox
from nexo_django.sandbox.paths import MOUNT
from nexo_django.sandbox.rooted import RootedFiles


class FolderSandbox(Sandbox):
    """A sandbox with a shell, whose files are those of `_files`."""

    has_shell = True
    _files: RootedFiles

    def inside(self, path: str) -> str:
        """Give the one name of a path, which may begin with the folder's own."""
        return self._files.inside(path)

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        return self._files.read(path)

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole."""
        self._files.write(path, data)

    def remove(self, path: str) -> bool:
        """Delete a file or an empty folder."""
        return self._files.remove(path)

    def entries(self) -> Iterator[Entry]:
        """Give the files."""
        return self._files.entries()


class WorkspaceSandbox(FolderSandbox):
    """One with a folder for each chat, which is made when it is first used.

    `owner` is the user and group that its files get, None for those of the site.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        folder: Path | None,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        owner: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.root, self.max_file_bytes = root, max_file_bytes
        self.folder = folder or workspaces.folder(root, "", "")
        self._files = RootedFiles(
            self.folder,
            max_file_bytes=max_file_bytes,
            owner=owner,
            make=lambda: workspaces.make(self.folder, root, owner),
        )

    def discard(self) -> None:
        """Delete the workspace."""
        workspaces.remove(self.folder)

    def describe(self) -> str:
        """Say what the tools work in."""
        return f"The workspace is {MOUNT}; commands have no network."
