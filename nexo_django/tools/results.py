"""What a tool gives back, as the text that the model reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from pydantic_core import to_jsonable_python

from nexo_django.sanitize import clean_json, clean_text


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool may return to say more than a value.

    `truncated` says that the tool cut its output itself, so that nothing else will;
    `output_id` names the stored original.
    """

    content: Any
    is_error: bool = False
    truncated: bool = False
    output_id: str | None = None

    @property
    def text(self) -> str:
        """The content as text."""
        return as_text(self.content)


def as_result(value: Any) -> ToolResult:
    """Wrap what a tool returned, unless it is a result already."""
    return value if isinstance(value, ToolResult) else ToolResult(value)


def as_text(value: Any) -> str:
    """Give any value as text: text itself, nothing for None, else JSON.

    Bytes are read as UTF-8 where they are that, and described where they are not.
    """
    if value is None:
        return ""
    if isinstance(value, str | Promise):
        return clean_text(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value))
    try:
        plain = to_jsonable_python(value, fallback=_fallback, bytes_mode="base64")
    except Exception:  # inside itself, or nested too deep: clean_json ends such values
        plain = value
    return json.dumps(clean_json(plain), ensure_ascii=False)


def _bytes_text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes that are not text)"
    return clean_text(text)


def _fallback(value: Any) -> Any:
    # A queryset is an iterable, and so is a lazy translation.
    if isinstance(value, Iterable) and not isinstance(value, Promise):
        return list(value)
    return str(value)
