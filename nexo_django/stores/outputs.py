"""Whole outputs of tools without a database: in the process's memory, or in files by a log."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nexo_django import conf
from nexo_django.sanitize import clean_text


class Outputs(Protocol):
    """The outputs of one chat; those that are older than OUTPUT_RETENTION are gone."""

    def keep(self, text: str) -> str:
        """Keep a text and give its id."""

    def read(self, output_id: str) -> str | None:
        """Give a text, None when there is none of that id."""


@dataclass
class HeldOutputs:
    """Outputs in memory, by their ids, with the time when each was kept."""

    texts: dict[str, tuple[float, str]] = field(default_factory=dict)

    def keep(self, text: str) -> str:
        """Keep a text and give its id; those that expired make room."""
        self.purge()
        output_id = str(uuid.uuid4())
        self.texts[output_id] = (time.time(), clean_text(text))
        return output_id

    def read(self, output_id: str) -> str | None:
        """Give a text, None when there is none of that id."""
        kept, text = self.texts.get(output_id, (0.0, None))
        return None if text is None or expired(kept) else text

    def purge(self, now: float | None = None) -> int:
        """Delete what expired, and count it."""
        gone = [key for key, (kept, _) in self.texts.items() if expired(kept, now)]
        for key in gone:
            del self.texts[key]
        return len(gone)


@dataclass(frozen=True)
class OutputFiles:
    """Outputs as files in a directory that only its owner can look into."""

    directory: Path

    def keep(self, text: str) -> str:
        """Keep a text and give its id; those that expired make room."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.purge()
        output_id = str(uuid.uuid4())
        path = self.directory / output_id
        try:
            # Nobody knows the id before the file is whole.
            with open(path, "xb", opener=_for_owner) as file:
                file.write(clean_text(text).encode())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return output_id

    def read(self, output_id: str) -> str | None:
        """Give a text, None when there is none of that id."""
        try:
            path = self.directory / str(uuid.UUID(output_id))
        except (ValueError, TypeError, AttributeError):
            return None
        try:
            return None if expired(path.stat().st_mtime) else path.read_bytes().decode()
        except FileNotFoundError:
            return None

    def purge(self, now: float | None = None) -> int:
        """Delete what expired, and count it."""
        gone = [path for path in self._files() if _expired(path, now)]
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)

    def delete(self) -> None:
        """Delete all of them."""
        for path in self._files():
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.directory.rmdir()

    def _files(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from list(self.directory.iterdir())


def expired(kept: float, now: float | None = None) -> bool:
    """Whether what was kept at that time is not kept any more."""
    retention = conf.get("OUTPUT_RETENTION")
    if retention is None:
        return False
    return bool(kept + retention.total_seconds() <= (time.time() if now is None else now))


def _expired(path: Path, now: float | None) -> bool:
    with suppress(FileNotFoundError):
        return expired(path.stat().st_mtime, now)
    return False


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
