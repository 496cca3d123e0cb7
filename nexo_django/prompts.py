"""What a session takes as its address and as a prompt; refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from nexo_django.exceptions import brief
from nexo_django.messages import USER, Message, is_blank
from nexo_django.sanitize import clean_message, clean_text

MAX_INSTANCE_ID = 191
MAX_KEY = 191
# Parts that a prompt's other arguments make.
RESERVED = {"attachment": "attachments", "output": "output"}
UNSTABLE = (bytes, bytearray, bool, type, dict, list, tuple, set, frozenset)


def instance_id(value: Any) -> str:
    """Give an instance id as text, or raise TypeError or ValueError."""
    if value is None or isinstance(value, UNSTABLE):
        raise TypeError(
            f"The instance id is {brief(value)}; give text or something with a stable str(), "
            f"such as a user's primary key."
        )
    return _identifier(str(value), "instance id", MAX_INSTANCE_ID)


def key(value: Any) -> str | None:
    """Give an idempotency key as text, or None."""
    if value is None:
        return None
    if isinstance(value, UNSTABLE):
        raise TypeError(f"The key is {brief(value)}; give text.")
    return _identifier(str(value), "key", MAX_KEY)


def prompt(value: Any, max_bytes: int, attached: Sequence[dict[str, Any]] = ()) -> Message:
    """Give a prompt as a user message, or raise TypeError or ValueError.

    `value` is text, or a list of parts such as `{"type": "text", "text": "..."}` and
    `{"type": "image_url", "image_url": {"url": "https://..."}}`. Blank text parts are left out, and text before all other parts
    is the message's content. `attached` are the parts of files; with one the text may be empty.
    """
    if isinstance(value, str):
        message = Message(USER, value)
    elif isinstance(value, list | tuple) and value:
        parts = [part for part in map(_part, value) if not is_blank(part)]
        leading = list(takewhile(_is_text, parts))
        # Text between other parts stays where it is: it may be about its neighbours.
        rest = parts if any(map(_is_text, parts[len(leading) :])) else parts[len(leading) :]
        text = None if rest is parts else "\n".join(part["text"] for part in leading)
        message = Message(USER, text or None, parts=tuple(rest) or None)
    else:
        raise TypeError(
            f"A prompt is text or a list of parts, not {brief(value)}."
            if not isinstance(value, list | tuple)
            else "The prompt has no parts; give it some text."
        )
    if attached:
        message = message.replace(parts=(*(message.parts or ()), *attached))
        if not (message.content or "").strip():
            message = message.replace(content=None)
    message = clean_message(message)
    if not message.says_something:
        raise ValueError("The prompt is empty; give it some text.")
    _refuse_size(message, max_bytes)
    return message


def _identifier(text: str, what: str, limit: int) -> str:
    if not text.strip():
        raise ValueError(f"The {what} is empty; give a text that names it.")
    if len(text) > limit:
        raise ValueError(
            f"The {what} has {len(text)} characters; at most {limit} are stored. "
            f"Shorten it, or use a hash of it."
        )
    if clean_text(text) != text:
        raise ValueError(f"The {what} {brief(text)} has a NUL or half of a surrogate pair.")
    return text


def _part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise TypeError(f'A part is a dictionary with a "type", not {brief(part)}.')
    if part["type"] in RESERVED:
        raise ValueError(f"A part of type {part['type']!r} is made by {RESERVED[part['type']]}=.")
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        raise TypeError(f'A part of type "text" has its text under "text"; this is {brief(part)}.')
    return part


def _is_text(part: dict[str, Any]) -> bool:
    return bool(part["type"] == "text")


def _refuse_size(message: Message, max_bytes: int) -> None:
    size = len((message.content or "").encode())
    # Of attached texts, what the model reads of them counts.
    parts = [p for p in message.parts or () if p["type"] not in RESERVED]
    size += len(repr(parts)) if parts else 0
    size += sum(p["bytes"] for p in message.parts or () if "tokens" in p and "bytes" in p)
    if size > max_bytes:
        raise ValueError(
            f"The prompt has {size:,} bytes; this agent takes {max_bytes:,}. Shorten it, keep the "
            f"document where a tool can read it, or raise the agent's max_prompt_bytes."
        )
