"""What `attachments=` takes: files of any kind, read, looked into and refused before any write."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from django.core.files.base import File

from nexo_django import conf, media
from nexo_django.completion import catalogue
from nexo_django.completion.shown import refused
from nexo_django.exceptions import NotSupported, brief
from nexo_django.media import Upload

# A larger one is refused by providers, and by then it would be in the conversation.
LONGEST_SIDE = 8000
# Gives a file of the session by its id.
Find = Callable[[str], Upload | None]

TAKEN = (
    "a path, a Django File or UploadedFile, an open binary file, a pair (name, bytes), or a part "
    'of type "attachment" of one of the session\'s messages'
)


def read(given: Any, model: str, find: Find) -> tuple[list[Upload], list[dict[str, Any]]]:
    """Give the new files, and the parts of all; raises TypeError, ValueError or NotSupported."""
    if given is None:
        return [], []
    if isinstance(given, str | bytes | Mapping | os.PathLike) or not isinstance(given, Sequence):
        raise TypeError(f"attachments is {brief(given)}; give a list of files.")
    most = conf.get("ATTACHMENT_COUNT")
    if len(given) > most:
        raise ValueError(
            f'{len(given)} files are attached; a prompt takes {most} (NEXO["ATTACHMENT_COUNT"]).'
        )
    new, parts = [], []
    for item in given:
        if isinstance(item, Mapping):
            found = _referred(item, find)
        else:
            found = _upload(*_opened(item))
            new.append(found)
        _refuse_for(model, found)
        parts.append(found.part)
    return new, parts


def _referred(part: Mapping[str, Any], find: Find) -> Upload:
    if not media.is_attachment(part) or not isinstance(part.get("id"), str):
        raise TypeError(f"{brief(part)} can't be attached; give {TAKEN}.")
    found = find(part["id"])
    if found is None:
        raise ValueError(
            f"The session has no attachment {brief(part['id'])}, or its file is gone; attach the "
            f"file itself."
        )
    return found


def _opened(item: Any) -> tuple[str, bytes]:
    """Give a file's name and its bytes, not more than one too many."""
    if isinstance(item, tuple) and len(item) == 2:
        name, data = item
        if isinstance(name, str) and isinstance(data, bytes | bytearray | memoryview):
            return name, bytes(data)
    if isinstance(item, str | os.PathLike) and not isinstance(item, bytes):
        return _from_path(item)
    if isinstance(item, File) or callable(getattr(item, "read", None)):
        return _from_file(item)
    if isinstance(item, bytes | bytearray):
        raise TypeError('Bytes need a name: attach ("cat.png", data).')
    raise TypeError(f"{brief(item)} can't be attached; give {TAKEN}.")


def _from_path(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    name = PurePath(os.fspath(path)).name
    try:
        # A pipe would keep us waiting for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"The attachment {brief(str(Path(path)))} is no regular file.")
            return name, file.read(_limit() + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"The attachment {brief(str(path))} can't be read: {reason}.") from None


def _from_file(file: Any) -> tuple[str, bytes]:
    name = PurePath(str(getattr(file, "name", None) or "")).name
    size = getattr(file, "size", None) if isinstance(file, File) else None
    if isinstance(size, int) and size > _limit():
        raise _too_large(name, size)
    opened = isinstance(file, File) and file.closed
    try:
        if isinstance(file, File):
            file.open("rb")
        data = _pieces(file, _limit() + 1)
        if opened:
            file.close()
        elif file.seekable():
            # Whoever gave it may want to keep it too.
            file.seek(0)
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(
            f"The attachment {brief(name)} can't be read: {type(error).__name__}. "
            f"Give an open binary file."
        ) from None
    if not isinstance(data, bytes):
        raise TypeError(f"The attachment {brief(name)} is open as text; open it with 'rb'.")
    return name, data


def _pieces(file: Any, most: int) -> Any:
    """Read up to so many bytes; a raw file may give fewer at a time than it is asked for."""
    data = file.read(most)
    if isinstance(data, bytes):
        while len(data) < most and (more := file.read(most - len(data))):
            data += more
    return data


def _upload(name: str, data: bytes) -> Upload:
    if len(data) > _limit():
        raise _too_large(name, len(data))
    if not data:
        raise ValueError(f"The attachment {brief(name)} is empty.")
    found = media.upload(name, data)
    allowed = conf.get("ATTACHMENT_TYPES")
    if found is None or not _allows(allowed, found.media_type):
        kind = "of no known type" if found is None else found.media_type
        raise ValueError(
            f"The attachment {brief(name)} is {kind}, by its content; "
            f'NEXO["ATTACHMENT_TYPES"] takes {", ".join(allowed)}.'
        )
    _refuse_broken(found)
    return found


def _allows(allowed: Sequence[str], media_type: str) -> bool:
    if media_type in allowed:
        return True
    # What is shown as text is text, whatever its type is called.
    general = "text/*" if media.is_text(media_type) else f"{media_type.partition('/')[0]}/*"
    return general in allowed


def _refuse_broken(found: Upload) -> None:
    """Refuse an image that every later request would fail with."""
    if found.media_type not in media.IMAGES:
        return
    sides = [found.details.get(side, 0) for side in ("width", "height")]
    if not all(sides):
        raise ValueError(f"The attachment {brief(found.name)} is a broken {found.media_type}.")
    if max(sides) > LONGEST_SIDE:
        raise ValueError(
            f"The attachment {brief(found.name)} has {sides[0]} x {sides[1]} pixels; models take "
            f"{LONGEST_SIDE} a side. Scale it down."
        )


def _refuse_for(model: str, found: Upload) -> None:
    if kind := refused(catalogue.facts(model), found.media_type):
        raise NotSupported(
            f"The model {brief(model)} takes no {kind}, so {brief(found.name)} can't be attached. "
            f"Use a model that does, or give the model its text."
        )


def _limit() -> int:
    return int(conf.get("ATTACHMENT_BYTES"))


def _too_large(name: str, size: int) -> ValueError:
    more = " or more" if size == _limit() + 1 else ""
    return ValueError(
        f"The attachment {brief(name)} has {size:,} bytes{more}; "
        f'NEXO["ATTACHMENT_BYTES"] is {_limit():,}.'
    )
