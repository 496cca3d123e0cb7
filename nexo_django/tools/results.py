"""What a tool gives back, as the text that the model reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from django.utils.functional import Promise
from pydantic_core import PydanticSerializationError, to_jsonable_python

from nexo_django.exceptions import brief
from nexo_django.sanitize import clean_json, clean_text, described
from nexo_django.truncation import HEAD, MODES

# How pydantic's errors of values that hold themselves begin; they have no class of their own.
_PYDANTICS = ("Circular reference", "Maximum serialization depth")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool may return to say more than a value.

    What is too long is cut, and with `mode="tail"` its end is kept. `truncated` says that the
    tool cut its output itself, so that nothing else will; `output_id` names the stored original.
    """

    content: Any
    is_error: bool = False
    truncated: bool = False
    output_id: str | None = None
    mode: str = HEAD
    _text: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {brief(self.mode)}; it is one of {', '.join(MODES)}.")
        # Frozen: assignment goes around the guard while the value is made.
        object.__setattr__(self, "is_error", bool(self.is_error))
        object.__setattr__(self, "truncated", bool(self.truncated))

    @property
    def text(self) -> str:
        """The content as text, made once: some content can be read only once."""
        if self._text is None:
            object.__setattr__(self, "_text", as_text(self.content))
        return self._text or ""

    def made(self) -> Self:
        """Make the text now; raises what the content raises when it is read."""
        _ = self.text
        return self


def as_result(value: Any) -> ToolResult:
    """Wrap what a tool returned, unless it is a result already."""
    return value if isinstance(value, ToolResult) else ToolResult(value)


def as_text(value: Any) -> str:
    """Give any value as text: text itself, nothing for None, else JSON.

    Bytes are read as UTF-8 where they are that, and described where they are not. Raises what
    a generator, a queryset and the like raise when they are read.
    """
    if value is None:
        return ""
    if isinstance(value, str | Promise):
        return clean_text(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value))
    try:
        plain = to_jsonable_python(value, fallback=_fallback, bytes_mode="base64")
    except Exception as error:
        if not _of_the_form(error):
            raise
        plain = value  # inside itself, or nested too deep: clean_json ends such values
    return json.dumps(clean_json(plain), ensure_ascii=False)


def _of_the_form(error: Exception) -> bool:
    """Whether a value has no JSON, rather than that its own code failed as it was read."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        return False
    if isinstance(error, PydanticSerializationError | UnicodeEncodeError):
        return True
    return isinstance(error, ValueError) and str(error).startswith(_PYDANTICS)


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
    return described(value)
