"""Attached files without a database: in the process's memory, or beside a log."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nexo_django.exceptions import StoreFailed
from nexo_django.media import Upload, from_part, is_attachment
from nexo_django.messages import Message


class Attached(Protocol):
    """The attached files of one chat, by their ids."""

    def keep(self, attachment_id: str, data: bytes) -> None:
        """Keep a file; on return it is stored."""

    def read(self, attachment_id: str) -> bytes | None:
        """Give a file's bytes, None when there is none of that id."""

    def drop(self, attachment_id: str) -> None:
        """Delete a file if it is there."""


@dataclass
class HeldAttachments:
    """Files in memory."""

    files: dict[str, bytes] = field(default_factory=dict)

    def keep(self, attachment_id: str, data: bytes) -> None:
        """Keep a file."""
        self.files[attachment_id] = data

    def read(self, attachment_id: str) -> bytes | None:
        """Give a file's bytes, None when there is none of that id."""
        return self.files.get(attachment_id)

    def drop(self, attachment_id: str) -> None:
        """Delete a file if it is there."""
        self.files.pop(attachment_id, None)


@dataclass(frozen=True)
class AttachmentFiles:
    """Files in a directory that only its owner can look into."""

    directory: Path

    def keep(self, attachment_id: str, data: bytes) -> None:
        """Keep a file; on return it is on the disk."""
        path = self.directory / str(uuid.UUID(attachment_id))
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            with open(path, "xb", opener=_for_owner) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                reason = error.strerror or type(error).__name__
                raise StoreFailed(f"{path} could not be written: {reason}.") from error
            raise

    def read(self, attachment_id: str) -> bytes | None:
        """Give a file's bytes, None when there is none of that id."""
        try:
            return (self.directory / str(uuid.UUID(attachment_id))).read_bytes()
        except (ValueError, TypeError, AttributeError, OSError):
            return None

    def drop(self, attachment_id: str) -> None:
        """Delete a file if it is there."""
        (self.directory / str(uuid.UUID(attachment_id))).unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete all of them."""
        with suppress(FileNotFoundError):
            for path in list(self.directory.iterdir()):
                path.unlink(missing_ok=True)
            self.directory.rmdir()


@contextmanager
def kept(attached: Attached, files: Sequence[Upload]) -> Iterator[None]:
    """Keep files while their prompt is written; where that fails they go again."""
    done: list[str] = []
    try:
        for file in files:
            attached.keep(file.id, file.data)
            done.append(file.id)
        yield
    except BaseException:
        for attachment_id in done:
            with suppress(OSError):
                attached.drop(attachment_id)
        raise


def intact(attached: Attached, messages: Iterable[Message], ids: Sequence[str]) -> dict[str, bytes]:
    """Give files by their ids, without those that are gone or not what the messages say."""
    parts = _parts(messages)
    read = {key: attached.read(key) for key in ids if key in parts}
    return {
        key: data
        for key, data in read.items()
        if data is not None and hashlib.sha256(data).hexdigest() == parts[key].get("sha256")
    }


def found(attached: Attached, messages: Iterable[Message], attachment_id: str) -> Upload | None:
    """Give a file as its message's part tells of it."""
    messages = list(messages)
    data = intact(attached, messages, [attachment_id]).get(attachment_id)
    return None if data is None else from_part(_parts(messages)[attachment_id], data)


def _parts(messages: Iterable[Message]) -> dict[str, dict[str, Any]]:
    parts = (part for message in messages for part in message.parts or ())
    return {str(part.get("id")): part for part in parts if is_attachment(part)}


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
