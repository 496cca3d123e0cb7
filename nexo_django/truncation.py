"""Caps what a tool's result may take in the context, and reads the rest back, page by page.

Pure, and total: any value gives a text within the caps, in linear time, and never raises.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from nexo_django.sanitize import clean_text

MAX_LINES, MAX_BYTES, MAX_LINE_CHARS = 2000, 50 * 1024, 2000
HEAD, TAIL = MODES = ("head", "tail")


@dataclass(frozen=True, slots=True)
class Truncated:
    """A text within the caps, and what it was cut from.

    The totals are the original's; what was kept of it is counted without the hint and the
    marks of clipped lines. A clipped line is a kept one.
    """

    text: str
    truncated: bool
    total_lines: int
    total_bytes: int
    kept_lines: int
    kept_bytes: int

    @property
    def omitted_lines(self) -> int:
        """How many lines are not shown at all."""
        return self.total_lines - self.kept_lines

    @property
    def omitted_bytes(self) -> int:
        """How many bytes are not shown."""
        return self.total_bytes - self.kept_bytes


def truncate(
    value: Any,
    *,
    max_lines: int = MAX_LINES,
    max_bytes: int = MAX_BYTES,
    max_line_chars: int = MAX_LINE_CHARS,
    mode: str = HEAD,
    output_id: str | None = None,
) -> Truncated:
    """Cut a value's text to so many lines, bytes of UTF-8 and characters a line.

    The beginning is kept, or with `mode="tail"` the end. The text with its hint is within
    the caps, so that cutting it again changes nothing. The hint names `output_id`, under
    which the caller stores `as_text(value)`, and how to read on.
    """
    text = as_text(value)
    caps = _Caps(max(1, max_lines), max(4, max_bytes), max(1, max_line_chars))
    lines, size = count_lines(text), len(text.encode())
    if caps.hold(text, lines, size):
        return Truncated(text, False, lines, size, lines, size)
    tail = mode == TAIL
    # As long as any hint of this text: its numbers are the totals' at most.
    reserve = _hint(tail, lines, lines, size, size, output_id, lines)
    hinted = caps.less(reserve)
    body = _cut(text, hinted or caps, tail)
    if hinted is None:
        return Truncated(body.text, True, lines, size, body.lines, body.size)
    hint = _hint(tail, body.lines, lines, body.size, size, output_id, body.whole)
    joint = "" if tail or body.text.endswith("\n") else "\n"
    shown = f"{hint}\n{body.text}" if tail else f"{body.text}{joint}{hint}"
    return Truncated(shown, True, lines, size, body.lines, body.size)


def as_text(value: Any) -> str:
    """Give any value as text that can be stored: what `truncate` cuts and counts."""
    try:
        return clean_text(_coerced(value))
    except Exception:  # a result that can't be shown must still answer its call
        return f"<{type(value).__name__}>"


def _coerced(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def count_lines(text: str) -> int:
    """Count lines as everything here does: split on "\\n" only, the last may lack it."""
    return text.count("\n") + (not text.endswith("\n") and text != "")


@dataclass(frozen=True, slots=True)
class _Caps:
    lines: int
    size: int
    line_chars: int

    def hold(self, text: str, lines: int, size: int) -> bool:
        if lines > self.lines or size > self.size:
            return False
        return all(len(line) <= self.line_chars for line in text.split("\n"))

    def less(self, hint: str) -> _Caps | None:
        """Give what a hint leaves of the caps, or None where both do not fit."""
        wide = max(len(line) for line in hint.split("\n"))
        lines = self.lines - count_lines(hint)
        size = self.size - len(hint.encode()) - 1
        if lines < 1 or size < 4 or wide > self.line_chars:
            return None
        return _Caps(lines, size, self.line_chars)


@dataclass(frozen=True, slots=True)
class _Body:
    text: str
    lines: int
    size: int
    # Lines from the start that are shown in full.
    whole: int


def _cut(text: str, caps: _Caps, tail: bool) -> _Body:
    shown: list[str] = []
    used = kept = whole = 0
    clipped = False
    position = len(text) if tail else 0
    while len(shown) < caps.lines and (position > 0 if tail else position < len(text)):
        start, end, after = _line(text, position, tail)
        line, had = _clip(text, start, end, caps.line_chars, tail)
        room = caps.size - used - (after - end)
        cost = len(line.encode())
        if cost > room:
            if shown:
                break
            line = had = _fit(text, start, end, room, caps.line_chars, tail)
            cost = len(line.encode())
        shown.append(line + text[end:after])
        used += cost + (after - end)
        kept += len(had.encode()) + (after - end)
        clipped = clipped or len(had) < end - start
        whole += not clipped
        position = start if tail else after
    body = "".join(reversed(shown) if tail else shown)
    return _Body(body, len(shown), kept, 0 if tail else whole)


def _line(text: str, position: int, tail: bool) -> tuple[int, int, int]:
    """Give where the line after (or before) a position starts, ends, and its newline ends."""
    if tail:
        end = position - 1 if text[position - 1] == "\n" else position
        return text.rfind("\n", 0, end) + 1, end, position
    end = text.find("\n", position)
    return (position, len(text), len(text)) if end < 0 else (position, end, end + 1)


def _clip(text: str, start: int, end: int, chars: int, tail: bool) -> tuple[str, str]:
    """Give the line as it is shown, and what of the original that is."""
    if end - start <= chars:
        return text[start:end], text[start:end]
    room = chars - len(_mark(end - start, tail))
    if room < 1:
        kept = _slice(text, start, end, chars, tail)
        return kept, kept
    kept = _slice(text, start, end, room, tail)
    mark = _mark(end - start - len(kept), tail)
    return (mark + kept if tail else kept + mark), kept


def _mark(count: int, tail: bool) -> str:
    said = f"[{count:,} more characters]"
    return f"{said}... " if tail else f" ...{said}"


def _fit(text: str, start: int, end: int, room: int, chars: int, tail: bool) -> str:
    """Give as much of a line as so many bytes hold, not parting a character."""
    size = min(chars, room, end - start)
    piece = text[end - size : end] if tail else text[start : start + size]
    raw = piece.encode()
    raw = raw[max(0, len(raw) - room) :] if tail else raw[:room]
    return raw.decode("utf-8", "ignore")


def _slice(text: str, start: int, end: int, chars: int, tail: bool) -> str:
    """Give one end of a line, parting no accent or emoji from its character."""
    at = edge = end - chars if tail else start + chars
    for _ in range(_FAR):
        if not start < at < end:
            break
        if not _joined(text[at - 1], text[at]):
            edge = at
            break
        at += 1 if tail else -1
    return text[edge:end] if tail else text[start:edge]


_FAR = 32


def _joined(before: str, after: str) -> bool:
    return after >= "\u0300" and (
        after == "\u200d"
        or before == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
    )


def _hint(
    tail: bool, lines: int, of_lines: int, size: int, of_size: int, id_: str | None, offset: int
) -> str:
    end = "last" if tail else "first"
    said = (
        f"[Output truncated: the {end} {lines:,} of {of_lines:,} lines are shown,"
        f" {size:,} of {of_size:,} bytes.]"
    )
    if id_ is None:
        return f"{said}\n[The rest was not kept.]"
    first = f'read_output(id="{id_}", offset={offset}, limit={MAX_LINES})'
    found = f'read_output(id="{id_}", grep="text")'
    return f"{said}\n[To read on: {first}; to search: {found}.]"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stored output.

    `text` is a piece of the original as it is; the pages from offset 0 on, each beginning at
    the `next_offset` of the one before, make the original. With `grep` it is a list of the
    matching lines with their offsets. `next_offset` is None at the end.
    """

    text: str
    offset: int
    next_offset: int | None
    total_lines: int

    def shown(self, output_id: str) -> str:
        """Give the text with a hint how to read on."""
        if self.next_offset is None:
            end = f"[End of the output, {self.total_lines:,} lines.]"
        else:
            end = (
                f"[More of {self.total_lines:,} lines:"
                f' read_output(id="{output_id}", offset={self.next_offset}).]'
            )
        joint = "" if not self.text or self.text.endswith("\n") else "\n"
        return f"{self.text}{joint}{end}"


# What a page's hint may take of the cap.
_PAGE_HINT = 256


def page(
    text: str,
    offset: int = 0,
    limit: int = MAX_LINES,
    grep: str | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    max_line_chars: int = MAX_LINE_CHARS,
) -> Page:
    """Give at most `limit` lines of a text after the first `offset`, within the byte cap.

    A line longer than `max_line_chars` counts as several lines, so that every part of any
    text can be reached. `grep` gives only lines with that text in them, whatever the case.
    """
    budget = max(4, max_bytes - _PAGE_HINT)
    rows = _Rows(text, max(1, min(max_line_chars, budget // 4)))
    offset, limit = max(0, int(offset)), max(1, int(limit))
    if grep:
        return _search(rows, offset, limit, grep, budget)
    number, start = rows.skip(offset)
    end, size = start, 0
    while end < len(text) and number - offset < limit:
        after = rows.end(end)
        cost = len(text[end:after].encode())
        if size + cost > budget and end > start:
            break
        number, end, size = number + 1, after, size + cost
    following = number if end < len(text) else None
    return Page(text[start:end], offset, following, count_lines(text))


@dataclass
class _Rows:
    """A text's lines, the long ones in several; a row keeps its newline."""

    text: str
    chars: int

    def end(self, start: int) -> int:
        """Give where the row that starts here ends."""
        limit = start + self.chars
        newline = self.text.find("\n", start, limit + 1)
        return newline + 1 if newline >= 0 else min(limit, len(self.text))

    def skip(self, count: int) -> tuple[int, int]:
        """Go to a row; give its number and where it starts."""
        number = start = 0
        while number < count and start < len(self.text):
            rows, after = self.block(start, len(self.text))
            if number + rows > count:
                for _ in range(count - number):
                    start = self.end(start)
                return count, start
            number, start = number + rows, after
        return count, start

    def block(self, start: int, stop: int) -> tuple[int, int]:
        """Count the rows of a long line or of many short ones, and give where they end."""
        last = self.text.rfind("\n", start, min(start + self.chars, stop))
        if last >= 0:
            return self.text.count("\n", start, last + 1), last + 1
        newline = self.text.find("\n", start, stop)
        after = stop if newline < 0 else newline + 1
        return self.within(start, after), after

    def within(self, start: int, after: int) -> int:
        """Count the rows of a line."""
        length = after - start - (self.text[after - 1] == "\n")
        return max(1, -(-length // self.chars))

    def at(self, index: int, number: int, start: int) -> tuple[int, int]:
        """Go on from a row to the one that an index is in."""
        text = self.text
        while text.find("\n", start, index) >= 0:
            rows, start = self.block(start, index)
            number += rows
        # A newline ends the row before it.
        rows = max(0, index - start - (text[index] == "\n")) // self.chars
        return number + rows, start + rows * self.chars


def _search(rows: _Rows, offset: int, limit: int, grep: str, budget: int) -> Page:
    text, found, size = rows.text, list[str](), 0
    # Looked for as it is: a pattern could take for ever.
    looked = re.compile(re.escape(grep), re.IGNORECASE)
    number, start = rows.skip(offset)
    following: int | None = None
    while match := looked.search(text, start):
        number, start = rows.at(match.start(), number, start)
        end = rows.end(start)
        line = f"{number}: {text[start:end].removesuffix(chr(10))}\n"
        size += len(line.encode())
        if found and (len(found) == limit or size > budget):
            following = number
            break
        found.append(line)
        number, start = number + 1, end
    return Page("".join(found), offset, following, count_lines(text))
