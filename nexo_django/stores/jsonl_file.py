"""A file of JSON objects, one a line, that survives kills, full disks and foreign hands."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

from nexo_django.exceptions import StoreFailed

logger = logging.getLogger(__name__)

T = TypeVar("T")
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
ARCHIVE = ".archive-"
# The stretch that is replaced.
LAST = -1
# Line numbers that a warning names.
NAMED = 10


@dataclass(frozen=True)
class Lines(Generic[T]):
    """A file's lines: the value of each, None for what is blank or no value.

    `torn` is a last line that was not written to its end, and `size` the bytes before it;
    `unended` tells that the last line lacks nothing but its newline.
    """

    raw: list[bytes]
    values: list[T | None]
    size: int
    torn: bytes = b""
    unended: bool = False

    @property
    def bad(self) -> list[int]:
        """The indexes of whole lines that hold something, but no value."""
        pairs = zip(self.raw, self.values, strict=True)
        return [i for i, (raw, value) in enumerate(pairs) if value is None and raw.strip()]

    @property
    def found(self) -> list[T]:
        """The values."""
        return [value for value in self.values if value is not None]

    @property
    def places(self) -> list[int]:
        """Where the line of each value begins."""
        starts = accumulate((len(raw) + 1 for raw in self.raw), initial=0)
        pairs = zip(starts, self.values, strict=False)
        return [start for start, value in pairs if value is not None]


@dataclass(frozen=True)
class Stretch(Generic[T]):
    """What was in the file from one replacement to the next; None for a line without a value.

    The first `made` lines are what a replacement began with; `parent` is the index of the
    stretch that it was made from, or None.
    """

    values: list[T | None]
    made: int = 0
    parent: int | None = None


@dataclass(frozen=True)
class _Archive:
    """A replaced file: its number, and what of the file after it was made of which."""

    number: int
    made: int
    parent: int
    path: Path


class JSONLFile(Generic[T]):
    """A file of JSON objects; one process at a time may open it, any may read it.

    `parse` gives the value of an object, or raises. What is no value is never fatal: the
    owner copies it to `<path>.quarantine` and blanks its line, so that the numbers and the
    places of lines stay.
    """

    def __init__(self, path: Path, parse: Callable[[Any], T]) -> None:
        self.path, self.parse = path, parse
        self.size = 0
        # Where the values that were read begin, in bytes.
        self.places: list[int] = []
        # Of an open file: how many lines a replacement wrote, how many archives there are, and
        # the number of the last.
        self.made = self.index = self.number = 0
        self._fd: int | None = None
        self._torn: int | None = None

    def read(self) -> list[T]:
        """Give the values that are there now; [] without a file. Changes nothing."""
        with self._failing("read"):
            try:
                lines = self._lines(self.path.read_bytes())
            except FileNotFoundError:
                return []
        self.size, self.places = lines.size, lines.places
        return lines.found

    def open(self) -> list[T]:
        """Open the file for its owner, mend what is broken in it, and give its values."""
        with self._failing("opened"):
            made = not self.path.exists()
            self._fd = os.open(self.path, FLAGS | os.O_CREAT, 0o600)
            if made:
                _sync_directory(self.path)
            self._drop_idle_archive()
            archives = self._archives()
            self.index = len(archives)
            for archive in archives[-1:]:
                self.made, self.number = archive.made, archive.number
            lines = self._lines(self.path.read_bytes())
            self._mend(lines)
        self.size, self.places = lines.size, lines.places
        return lines.found

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records, each a whole line; on return they are on the disk.

        A failure raises StoreFailed and leaves nothing behind that a later line could be
        glued to.
        """
        with self._failing("written"):
            self._write(b"".join(map(_line, records)))

    def replace(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        archive: bool = False,
        parent: int | None = LAST,
    ) -> None:
        """Put records in place of all lines, at once or not at all.

        With `archive` the replaced file stays beside it, as `<path>.archive-<n>-<lines>`:
        `lines` of what follows it are made from it. Where that is to have another `parent`,
        the name ends with that one's number, 0 for none.
        """
        data = [_line(record) for record in records]
        with self._failing("replaced"):
            if not archive:
                self._swap(b"".join(data), None)
                return
            self._drop_idle_archive()
            archives = self._archives()
            number = 1 + max([self.number, *(archive.number for archive in archives)])
            named = f"{self.path.name}{ARCHIVE}{number:06}-{len(data)}"
            if parent not in (LAST, len(archives)):
                named += f"-{0 if parent is None else archives[parent].number}"
            self._swap(b"".join(data), self.path.with_name(named))
        self.made, self.index, self.number = len(data), self.index + 1, number

    def replaced(self) -> int:
        """Give the number of the last replacement whose log is kept, 0 for none."""
        with self._failing("read"):
            done = [a.number for a in self._archives() if not a.path.samefile(self.path)]
        return done[-1] if done else 0

    def stretches(self) -> list[Stretch[T]]:
        """Give what the archives and the file hold, the oldest first."""
        with self._failing("read"):
            return self._stretches()

    def close(self) -> None:
        """Close the file; may be called twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _lines(self, data: bytes) -> Lines[T]:
        *raw, last = data.split(b"\n")
        values = [self._value(line) for line in raw]
        if not last:
            return Lines(raw, values, len(data))
        # All but the newline may have been written, by us or by another program.
        value = self._value(last)
        if value is None:
            return Lines(raw, values, len(data) - len(last), torn=last)
        return Lines([*raw, last], [*values, value], len(data), unended=True)

    def _value(self, line: bytes) -> T | None:
        if not line.strip():
            return None
        try:
            return self.parse(json.loads(line.decode()))
        except Exception:  # whatever a foreign line does to the parser, it is no value
            return None

    def _mend(self, lines: Lines[T]) -> None:
        bad = set(lines.bad)
        broken = [*(lines.raw[i] for i in lines.bad), lines.torn]
        if any(line.strip() for line in broken):
            self._quarantine([line for line in broken if line.strip()])
            self._tell(lines)
        if bad:
            kept = [b" " * len(r) if i in bad else r for i, r in enumerate(lines.raw)]
            self._swap(b"".join(line + b"\n" for line in kept), None)
        elif lines.torn:
            self._torn = lines.size
            self._cut()
        elif lines.unended:
            self._write(b"\n")

    def _quarantine(self, lines: list[bytes]) -> None:
        path = self.path.with_name(f"{self.path.name}.quarantine")
        fd = os.open(path, FLAGS | os.O_CREAT, 0o600)
        try:
            _write_all(fd, b"".join(line + b"\n" for line in lines))
        finally:
            os.close(fd)
        _sync_directory(path)

    def _tell(self, lines: Lines[T]) -> None:
        torn = [len(lines.raw)] if lines.torn.strip() else []
        numbers = ", ".join(str(index + 1) for index in [*lines.bad, *torn][:NAMED])
        count = len(lines.bad) + len(torn)
        logger.warning(
            "%s: %d line(s) hold no message that can be read (%s). They were moved to %s.quarantine"
            " and are left out.",
            self.path,
            count,
            f"line {numbers}{', ...' if count > NAMED else ''}",
            self.path.name,
        )

    def _write(self, data: bytes) -> None:
        fd = self._owned()
        if self._torn is not None:
            self._cut()
        start = self.end()
        try:
            _write_all(fd, data)
        except BaseException:
            self._torn = start
            with suppress(OSError):
                self._cut()
            raise

    def _cut(self) -> None:
        fd = self._owned()
        if self._torn is not None:
            os.ftruncate(fd, self._torn)
            os.fsync(fd)
            self._torn = None

    def _swap(self, data: bytes, archive: Path | None) -> None:
        """Replace the file by way of a temporary one; the owner's descriptor follows."""
        self._owned()
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(fd, data)
            if archive is not None:
                os.link(self.path, archive)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._fd, self._torn = fd, None
        _sync_directory(self.path)

    def _archives(self) -> list[_Archive]:
        """List the archives, the oldest first."""
        prefix = f"{self.path.name}{ARCHIVE}"
        found = []
        for entry in os.scandir(self.path.parent):
            if not entry.name.startswith(prefix):
                continue
            numbers = entry.name.removeprefix(prefix).split("-")
            if len(numbers) in (2, 3) and all(number.isdecimal() for number in numbers):
                number, made, parent = map(int, [*numbers, numbers[0]][:3])
                found.append(_Archive(number, made, parent, Path(entry.path)))
        return sorted(found, key=lambda archive: archive.number)

    def _drop_idle_archive(self) -> None:
        """Remove an archive that is still the log itself: its replacement never happened."""
        for archive in self._archives()[-1:]:
            if archive.path.samefile(self.path):
                archive.path.unlink()

    def _stretches(self) -> list[Stretch[T]]:
        try:
            log = self.path.open("rb")
        except FileNotFoundError:
            return []
        # Opened before the archives are listed: a replacement meanwhile shows in their inodes.
        with log:
            here = os.fstat(log.fileno())
            archives = [a for a in self._archives() if not os.path.samestat(here, a.path.stat())]
            texts = [*(archive.path.read_bytes() for archive in archives), log.read()]
        places = {archive.number: index for index, archive in enumerate(archives)}
        after = [Stretch[T]([]), *(Stretch[T]([], a.made, places.get(a.parent)) for a in archives)]
        pairs = zip(texts, after, strict=True)
        return [replace(stretch, values=self._lines(text).values) for text, stretch in pairs]

    def end(self) -> int:
        """Give the open file's size."""
        return os.fstat(self._owned()).st_size

    def _owned(self) -> int:
        if self._fd is None:
            raise StoreFailed(f"{self.path} is closed.")
        if not self._in_place(self._fd):
            raise StoreFailed(f"{self.path} was removed or replaced while it was in use.")
        return self._fd

    def _in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self.path.stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def _failing(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreFailed(
                f"{self.path} could not be {verb}: {error.strerror or type(error).__name__}. "
                f"What it held before is kept."
            ) from error


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.fsync(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
