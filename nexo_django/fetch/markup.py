"""Reading HTML in linear time, whatever it is: the standard library's parser can take hours."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

# What is no markup inside these, up to their end tag.
RAW = ("script", "style", "textarea", "title", "noscript", "template", "iframe", "svg", "xmp")
_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_STOP = re.compile(r"[>\"']")
_ATTRIBUTE = re.compile(
    r"(?i)(?<![^\s\"'/])(href|src|alt|title|charset|content)\s*=\s*"
    r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))"
)
MAX_TAG = 20_000


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: `name` in small letters, and the attributes that a reader wants, unread."""

    name: str
    closing: bool
    rest: str = ""

    def attributes(self) -> dict[str, str]:
        """Give the attributes, each the first of its name."""
        found: dict[str, str] = {}
        for match in _ATTRIBUTE.finditer(self.rest[:MAX_TAG]):
            value = match[2] or match[3] or match[4] or ""
            found.setdefault(match[1].lower(), unescaped(value).strip())
        return found


def pieces(text: str) -> Iterator[Tag | str]:
    """Give the tags and the texts between them, in order; comments are left out.

    Every character is looked at a fixed number of times: nothing is ever begun again.
    """
    at, end = 0, len(text)
    while at < end:
        opened = text.find("<", at)
        if opened < 0:
            yield unescaped(text[at:])
            return
        if opened > at:
            yield unescaped(text[at:opened])
        name = _NAME.match(text, opened + (2 if text.startswith("</", opened) else 1))
        if name is None:
            at = _other(text, opened)
            if at == opened + 1:
                yield "<"
            continue
        stop = _end_of_tag(text, name.end())
        if stop < 0:
            return
        tag = Tag(
            name[0].lower(), text.startswith("</", opened), text[name.end() : stop].rstrip("/")
        )
        yield tag
        at = stop + 1
        if tag.name in RAW and not tag.closing:
            closed = re.compile(rf"(?ai)</{tag.name}(?=[\s/>])").search(text, at)
            if closed is None:
                return
            yield unescaped(text[at : closed.start()])
            at = closed.start()


def unescaped(text: str) -> str:
    """Read the character references of a text."""
    try:
        return html.unescape(text)
    except ValueError:
        # A number of more digits than Python reads.
        return text


def _other(text: str, opened: int) -> int:
    """Give where a comment, a declaration or the like ends; the next place for a mere "<"."""
    if text.startswith("<!--", opened):
        closed = text.find("-->", opened + 4)
        return len(text) if closed < 0 else closed + 3
    if text.startswith(("<!", "<?", "</"), opened):
        closed = text.find(">", opened)
        return len(text) if closed < 0 else closed + 1
    return opened + 1


def _end_of_tag(text: str, at: int) -> int:
    """Give the place of the ">" that ends a tag, -1 when there is none: quoted ones end nothing."""
    while (found := _STOP.search(text, at)) is not None:
        if found[0] == ">":
            return found.start()
        closed = text.find(found[0], found.end())
        if closed < 0:
            return text.find(">", found.end())
        at = closed + 1
    return -1
