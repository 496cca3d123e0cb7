"""What is sent of attached files: their bytes to a model that takes such, else a note.

The same file always gives the same bytes, so that prompt caches keep working.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from typing import Any

from nexo_django import media
from nexo_django.completion.catalogue import Facts
from nexo_django.messages import Message
from nexo_django.pipeline import Env

logger = logging.getLogger(__name__)


def refused(facts: Facts, media_type: str) -> str | None:
    """Say what a model does not take, such as "images"; None where it may take the type.

    A model that the catalogue does not list may take everything.
    """
    if media.is_text(media_type) or not facts.listed or facts.provider == "nexo":
        return None
    if media_type == media.PDF:
        takes = "pdf_input" in facts.capabilities
        return None if takes else "PDF files"
    takes = "vision" in facts.capabilities or "image" in facts.modalities
    return None if takes else "images"


class Shown:
    """The parts that are sent for those that refer to files; the files are read once."""

    def __init__(self, env: Env, messages: Iterable[Message], facts: Facts) -> None:
        self.facts = facts
        parts = [p for m in messages for p in m.parts or () if media.is_attachment(p)]
        wanted = dict.fromkeys(str(part.get("id")) for part in parts)
        read = getattr(env.turn, "attachments", None)
        self.files: dict[str, bytes] = {} if read is None or not wanted else read(list(wanted))

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        """Give the part that is sent; a file that is gone, or not taken, is a note."""
        media_type = str(part.get("media_type", ""))
        if kind := refused(self.facts, media_type):
            return _text(media.note(part, f"not shown: this model takes no {kind}"))
        data = self.files.get(str(part.get("id")))
        if data is None:
            logger.warning("attachment=%s is missing; a note is sent", part.get("id"))
            return _text(media.note(part, "the file is missing"))
        return sent(part, media_type, data)


def sent(part: dict[str, Any], media_type: str, data: bytes) -> dict[str, Any]:
    """Give a file in the chat format, which litellm turns into each provider's own."""
    if media.is_text(media_type):
        text = (media.decoded(data) or "").strip()
        return _text(f"{media.note(part)}\n{text}\n[end of file {part.get('name')}]")
    url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    if media_type == media.PDF:
        return {"type": "file", "file": {"filename": str(part.get("name")), "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
