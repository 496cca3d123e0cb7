"""Files under a directory of this machine, and nothing beyond it, whoever changes it meanwhile.

A path is never given to the system whole: each folder is opened from the one before, no link
is followed by the system, and `..` in a link goes back to a folder that is open already.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.sandbox.base import MAX_ENTRIES, MAX_FILE_BYTES, Entry
from nexo_django.sandbox.paths import MOUNT, file_inside, inside

MAX_LINKS, MAX_DEPTH, MAX_VISITS = 16, 64, 200_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TEMPORARY = ".nexo-"


class RootedFiles:
    """The files under `root`, which `make` makes where it is not there yet.

    With `owner`, a pair of ids, what is made is given to it.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        owner: tuple[int, int] | None = None,
        make: Callable[[], None] | None = None,
    ) -> None:
        self.root, self.max_file_bytes = root, max_file_bytes
        self._owner, self._make = owner, make

    def read(self, path: str) -> bytes | None:
        """Give a file's content, None when there is none of that path."""
        with self._walk(path) as walk:
            name = walk.to_parent(make=False)
            if name is None:
                return None
            found = walk.look(name)
            if found is None:
                return None
            _refuse_special(path, found)
            fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=walk.fd)
            with os.fdopen(fd, "rb") as file:
                return self._content(path, file.fileno())

    def write(self, path: str, data: bytes) -> None:
        """Write a file beside its place and put it there, in place of one that is a plain file."""
        if len(data) > self.max_file_bytes:
            raise ToolError(
                f"The file would have {len(data)} bytes; a file may have {self.max_file_bytes}."
            )
        with self._walk(path) as walk:
            name = walk.to_parent(make=True)
            assert name is not None
            found = walk.look(name)
            if found is not None:
                _refuse_special(path, found)
                if found.st_nlink > 1:
                    raise ToolError(f"{brief(path)} has other names (hard links); not written.")
            temporary = f"{_TEMPORARY}{uuid.uuid4().hex}"
            try:
                self._fill(walk.fd, temporary, data, 0o644 if found is None else found.st_mode)
                os.replace(temporary, name, src_dir_fd=walk.fd, dst_dir_fd=walk.fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=walk.fd)
                raise

    def remove(self, path: str) -> bool:
        """Delete a file, a link itself or an empty folder; False when there is nothing."""
        with self._walk(path) as walk:
            name = walk.to_parent(make=False, follow=False)
            found = None if name is None else walk.look(name)
            if name is None or found is None:
                return False
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(name, dir_fd=walk.fd)
            else:
                os.unlink(name, dir_fd=walk.fd)
            return True

    def inside(self, path: str) -> str:
        """Give the one name of a path, which may begin with the directory's own."""
        return inside(path, roots=self._roots)

    def entries(self) -> Iterator[Entry]:
        """Give the files, the first MAX_ENTRIES; what is no plain file is left out."""
        try:
            root = self.open_root()
        except (FileNotFoundError, ConfigurationError):
            return
        try:
            left = [MAX_ENTRIES, MAX_VISITS]
            yield from _entries(root, "", MAX_DEPTH, left)
        finally:
            os.close(root)

    def open_root(self) -> int:
        """Open the directory, which is made first where that is known how."""
        if self._make is not None:
            self._make()
        try:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except NotADirectoryError:
            raise ConfigurationError(f"The sandbox's root {self.root} is no directory.") from None
        except FileNotFoundError:
            raise ConfigurationError(f"The sandbox's root {self.root} does not exist.") from None

    @property
    def _roots(self) -> tuple[str, ...]:
        return MOUNT, str(self.root)

    @contextmanager
    def _walk(self, path: str) -> Iterator[_Walk]:
        relative = file_inside(path, roots=self._roots)
        try:
            root = self.open_root()
            walk = _Walk(root, relative, self._owner)
            try:
                yield walk
            finally:
                walk.close()
        except OSError as error:
            raise ToolError(_said(path, error)) from None

    def _content(self, path: str, fd: int) -> bytes:
        found = os.fstat(fd)
        _refuse_special(path, found)
        if found.st_size > self.max_file_bytes:
            raise ToolError(
                f"{brief(path)} has {found.st_size} bytes; at most {self.max_file_bytes} are read."
            )
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        # It may grow while it is read.
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(self.max_file_bytes + 1)
        if len(data) > self.max_file_bytes:
            raise ToolError(f"{brief(path)} has more than {self.max_file_bytes} bytes.")
        return data

    def _fill(self, folder: int, name: str, data: bytes, mode: int) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
        with os.fdopen(fd, "wb") as file:
            if self._owner is not None:
                os.fchown(file.fileno(), *self._owner)
            # Without the bits that would give a program somebody's rights.
            os.fchmod(file.fileno(), stat.S_IMODE(mode) & 0o777)
            file.write(data)


class _Walk:
    """A way down from the root: the open folders, and the names that are still to be taken."""

    def __init__(self, root: int, path: str, owner: tuple[int, int] | None) -> None:
        self._open, self._names, self._owner = [root], path.split("/"), owner
        self._links = 0

    @property
    def fd(self) -> int:
        """The folder that the walk has come to."""
        return self._open[-1]

    def close(self) -> None:
        """Close every folder."""
        for fd in self._open:
            os.close(fd)

    def look(self, name: str) -> os.stat_result | None:
        """Give what a name in the folder is; None when there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def to_parent(self, *, make: bool, follow: bool = True) -> str | None:
        """Come to the folder of the path's last name, and give that name.

        None when a folder on the way is missing; with `make` it is made. A link at the end is
        followed as well, unless it is the link that is meant.
        """
        while True:
            name = self._names.pop(0)
            if name == "..":
                self._up()
                continue
            found = self.look(name)
            if found is not None and stat.S_ISLNK(found.st_mode) and (self._names or follow):
                self._splice(name)
                continue
            if not self._names:
                return name
            if found is None:
                if not make:
                    return None
                self._make_folder(name)
            self._open.append(os.open(name, _FOLDER, dir_fd=self.fd))

    def _up(self) -> None:
        if len(self._open) == 1:
            raise ToolError("A symbolic link on the way leads out of the workspace.")
        os.close(self._open.pop())
        if not self._names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _splice(self, name: str) -> None:
        """Put what a link says in the link's place."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise ToolError("There are too many symbolic links on the way.")
        target = os.readlink(name, dir_fd=self.fd)
        if target.startswith("/"):
            raise ToolError("A symbolic link on the way leads out of the workspace.")
        names = [part for part in target.split("/") if part not in ("", ".")]
        if not names and not self._names:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._names[:0] = names

    def _make_folder(self, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=self.fd)
            if self._owner is not None:
                fd = os.open(name, _FOLDER, dir_fd=self.fd)
                try:
                    os.fchown(fd, *self._owner)
                finally:
                    os.close(fd)


def _entries(folder: int, prefix: str, depth: int, left: list[int]) -> Iterator[Entry]:
    try:
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in _first(found, left))
    except OSError:
        return
    for name in names:
        if left[0] <= 0:
            return
        with suppress(OSError):
            yield from _entry(folder, f"{prefix}{name}", name, depth, left)


def _first(found: Iterator[os.DirEntry[str]], left: list[int]) -> Iterator[os.DirEntry[str]]:
    for entry in found:
        left[1] -= 1
        if left[1] < 0:
            return
        if not entry.name.startswith(_TEMPORARY):
            yield entry


def _entry(folder: int, path: str, name: str, depth: int, left: list[int]) -> Iterator[Entry]:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode):
        left[0] -= 1
        yield Entry(path, found.st_size)
    elif stat.S_ISDIR(found.st_mode) and depth > 0:
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            yield from _entries(inner, f"{path}/", depth - 1, left)
        finally:
            os.close(inner)


def _refuse_special(path: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise ToolError(f"{brief(path)} is a folder.")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{brief(path)} is no plain file (a device, pipe, socket or link).")


def _said(path: str, error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENXIO):
        return f"{brief(path)} is no plain file (a device, pipe, socket or link)."
    if error.errno == errno.ENOTDIR:
        return f"A part of {brief(path)} is a file or a link, not a folder."
    # Its own text would name where the workspace is.
    return f"{brief(path)}: {error.strerror or type(error).__name__}."
