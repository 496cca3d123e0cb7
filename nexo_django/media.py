"""What attached files are: told by their bytes, never by their name or by what an upload claims.

A file is in a message as a part of type "attachment", which names it and says what it is; its
bytes are kept elsewhere, by the part's id.
"""

from __future__ import annotations

import hashlib
import re
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any

from nexo_django.sanitize import clean_text
from nexo_django.tokens import estimate

ATTACHMENT = "attachment"
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
PDF = "application/pdf"
# Text that is not said to be text by its media type.
_TEXTS = frozenset({"application/json", "application/xml", "application/x-yaml", "image/svg+xml"})
LONGEST_NAME = 150
_PAGES = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029\[\]\\/]+")


@dataclass(frozen=True)
class Upload:
    """A file that is attached to a prompt; `details` are an image's size, a text's tokens."""

    name: str
    media_type: str
    data: bytes = field(repr=False)
    details: dict[str, int] = field(default_factory=dict)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.data)

    @property
    def sha256(self) -> str:
        """The digest of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def part(self) -> dict[str, Any]:
        """The part of the message: a reference, without the bytes."""
        return {
            "type": ATTACHMENT,
            "id": self.id,
            "name": self.name,
            "media_type": self.media_type,
            "bytes": self.size,
            "sha256": self.sha256,
            **self.details,
        }


def upload(name: str, data: bytes) -> Upload | None:
    """Give bytes as a file of the type that they have; None where that is none we know."""
    kind = _kind(data)
    if kind is not None:
        return Upload(shown_name(name, kind), kind, data, _details(kind, data))
    text = decoded(data)
    if text is None:
        return None
    # What can be read is a text, whatever else its name claims; the name says of which kind.
    guessed = guess_type(f"x{PurePosixPath(name).suffix}")[0] or ""
    kind = guessed if is_text(guessed) else "text/plain"
    return Upload(shown_name(name, kind), kind, data, {"tokens": estimate(text)})


def from_part(part: Mapping[str, Any], data: bytes) -> Upload:
    """Give a part of a stored message with its bytes."""
    details = {key: value for key, value in part.items() if isinstance(value, int)}
    details.pop("bytes", None)
    name, media_type = (str(part.get(key) or "") for key in ("name", "media_type"))
    return Upload(name, media_type, data, details, str(part.get("id")))


def is_attachment(part: Any) -> bool:
    """Whether a part refers to an attached file."""
    return isinstance(part, Mapping) and part.get("type") == ATTACHMENT


def is_text(media_type: str) -> bool:
    """Whether files of the type are shown as text."""
    return media_type.startswith("text/") or media_type in _TEXTS


def decoded(data: bytes) -> str | None:
    """Give a file's text, or None if it is no text in UTF-8."""
    if b"\x00" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def note(part: Mapping[str, Any], why: str = "") -> str:
    """Say in the file's place what it was: `[image cat.png, 120 kB, no longer shown]`."""
    media_type = str(part.get("media_type", ""))
    kind = "image" if media_type.startswith("image/") and not is_text(media_type) else "file"
    size = part.get("bytes")
    about = [f"{kind} {clean_text(str(part.get('name') or 'without a name'))}"]
    about += [_size(size)] if isinstance(size, int) else []
    return f"[{', '.join([*about, why] if why else about)}]"


def shown_name(name: str, media_type: str) -> str:
    """Give a name that is one line and can't end the note that it stands in."""
    base = name.replace("\\", "/").rpartition("/")[2]
    base = " ".join(clean_text(_UNNAMEABLE.sub(" ", base)).split())
    if len(base) > LONGEST_NAME:
        suffix = PurePosixPath(base).suffix[:16]
        base = base[: LONGEST_NAME - len(suffix) - 1] + "…" + suffix
    return base or f"file.{media_type.rpartition('/')[2].partition('+')[0]}"


def _size(size: int) -> str:
    for unit, factor in (("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}" if size < 999.5 * factor else f"{size:,} bytes"
    return f"{size} bytes"


def _kind(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    # Readers allow for something in front of it.
    return PDF if b"%PDF-" in data[:1024] else None


def _details(kind: str, data: bytes) -> dict[str, int]:
    if kind == PDF:
        return {"pages": max(1, len(_PAGES.findall(data)))}
    try:
        width, height = _SIZES[kind](data)
    except (struct.error, IndexError, ValueError):
        return {}
    return {"width": width, "height": height} if width and height else {}


def _png(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR":
        raise ValueError("no header")
    return struct.unpack(">II", data[16:24])


def _gif(data: bytes) -> tuple[int, int]:
    return struct.unpack("<HH", data[6:10])


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        # The frame's header; the four others in that range are tables.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 3 : at + 7])
            return width, height
        if marker in (0xD9, 0xDA):
            raise ValueError("no frame")
        if marker != 0x01 and not 0xD0 <= marker <= 0xD8:
            at += max(2, struct.unpack(">H", data[at : at + 2])[0])


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        sides = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return next(sides), next(sides)
    if kind == b"VP8L":
        bits = struct.unpack("<I", data[21:25])[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("no frame")


_SIZES = {"image/png": _png, "image/gif": _gif, "image/jpeg": _jpeg, "image/webp": _webp}
