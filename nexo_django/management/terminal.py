"""What the commands print: text that a model or a tool wrote is shown, never obeyed."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from nexo_django import events
from nexo_django.messages import ASSISTANT, SYSTEM, Message
from nexo_django.sanitize import REPLACEMENT

SHORT = 200
# Characters that turn the direction of what follows and so show another text than is there.
BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str, *, lines: bool = True) -> str:
    """Replace what a terminal would obey; line feeds and tabs stay unless `lines` is False."""
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or _harmless(c) else _shown(c) for c in text)


def shorten(text: str, limit: int = SHORT) -> str:
    """Give a text as one clean line of at most `limit` characters."""
    line = clean(" ".join(text[: limit * 4].split()), lines=False)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class Terminal:
    """Print a turn as it happens: the model's words as they are, everything else dimmed."""

    def __init__(self, out: OutputWrapper, style: Style) -> None:
        self.out = out
        self.red: Callable[[str], str] = style.ERROR
        self.coloured = self.red("x") != "x"
        self.at_line_start = True

    def say(self, text: str) -> None:
        """Print a piece of the model's text, at once."""
        self._write(clean(text))

    def note(self, text: str) -> None:
        """Print a dimmed line about the turn."""
        self.end_line()
        line = shorten(text, SHORT * 2)
        self._write(f"\x1b[2m{line}\x1b[0m\n" if self.coloured else f"{line}\n")

    def failure(self, text: str) -> None:
        """Print an error on a line of its own."""
        self.end_line()
        self._write(f"{self.red(clean(text))}\n")

    def end_line(self) -> None:
        """Begin a new line unless at the start of one."""
        if not self.at_line_start:
            self._write("\n")

    def event(self, type: str, payload: dict[str, Any]) -> None:
        """Print what an event of a turn says; errors are left to whoever catches them."""
        if type == events.CONTENT:
            self.say(payload["text"])
        elif type in LINES:
            self.note(LINES[type](payload))

    def message(self, message: Message) -> None:
        """Print a stored message as one line, and its calls each as another."""
        if message.role == SYSTEM:
            return
        if message.content or not message.calls:
            who = "model" if message.role == ASSISTANT else message.role
            self.note(f"{who}: {message.content or ''}")
        for call in message.calls:
            self.note(f"model calls {call.name} {_json(call.arguments)}")

    def _write(self, text: str) -> None:
        if not text:
            return
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        self.out.write(text.encode(encoding, "replace").decode(encoding), ending="")
        self.out.flush()
        self.at_line_start = text.endswith("\n")


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cs") and character not in BIDI


def _shown(character: str) -> str:
    # A carriage return is part of many line ends; alone it would overwrite the line.
    return "" if character == "\r" else REPLACEMENT


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _result(payload: dict[str, Any]) -> str:
    failed = " failed" if payload["is_error"] else ""
    return f"← {payload['name']}{failed}: {payload['content']}"


LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    events.TOOL_CALL: lambda p: f"→ {p['name']} {_json(p['arguments'])}",
    events.TOOL_RESULT: _result,
    events.RETRY: lambda p: f"The provider failed ({p['error']}); trying again in {p['wait']} s.",
    events.TURN_LIMIT_EXCEEDED: lambda p: f"Stopped after {p['max_turns']} model calls.",
    events.COMPACTED: lambda p: "Older messages were compacted.",
    events.APPROVAL_REQUESTED: lambda p: (
        f"{p['name']} waits for an approval: /approve {p['id']} or /deny {p['id']} [REASON], "
        f"then /continue."
    ),
    events.QUESTION: lambda p: f"? {p['text']} /answer {p['id']} TEXT, then /continue.",
    events.TRUNCATED: lambda p: "A tool's long output was shortened for the model.",
}
