"""HTML as the Markdown that a model reads: text, headings, lists, links, code and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urljoin

from nexo_django.fetch.markup import RAW, Tag, pieces

MAX_TEXT = 1_000_000
MAX_LINK = 2000
MAX_INDENT = 8
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
BLOCKS = re.compile(
    "address|article|aside|blockquote|body|center|dd|details|dialog|div|dl|dt|fieldset|figcaption|"
    "figure|footer|form|header|html|legend|main|nav|optgroup|option|p|section|select|summary|table|"
    "tbody|tfoot|thead"
)
_BLANKS = re.compile(r"[^\S\xa0]+")
_TRAILING = re.compile(r"[ \t]+\n")
_EMPTY_LINES = re.compile(r"\n{3,}")
MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`"}


def markdown(text: str, base: str = "") -> tuple[str, str]:
    """Give the title and the text of a page; links are made absolute by `base`."""
    writer = _Writer(base)
    for piece in pieces(text):
        if writer.size > MAX_TEXT:
            writer.add("\n\n[The rest of the page is left out.]")
            break
        writer.take(piece)
    written = _TRAILING.sub("\n", "".join(writer.parts))
    return " ".join(writer.title.split()), _EMPTY_LINES.sub("\n\n", written).strip()


@dataclass
class _Writer:
    base: str
    parts: list[str] = field(default_factory=list)
    size: int = 0
    title: str = ""
    inside: str | None = None
    pre: int = 0
    lists: list[int | None] = field(default_factory=list)
    link: str | None = None

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.size += len(text)

    def take(self, piece: Tag | str) -> None:
        if isinstance(piece, str):
            self._text(piece)
        elif piece.name in RAW:
            self.inside = None if piece.closing else piece.name
        elif piece.name in HEADINGS:
            self.add("\n\n" if piece.closing else f"\n\n{HEADINGS[piece.name]}")
        elif piece.name in MARKS:
            if not self.pre:
                self.add(MARKS[piece.name])
        else:
            self._tag(piece)

    def _text(self, text: str) -> None:
        if self.inside == "title":
            self.title = self.title or text[:500]
        elif self.inside in (None, "textarea", "xmp"):
            if not self.pre:
                text = _BLANKS.sub(" ", text)
                if self._at_start():
                    text = text.lstrip(" ")
            if text:
                self.add(text)

    def _at_start(self) -> bool:
        return not self.parts or self.parts[-1].endswith(("\n", " "))

    def _tag(self, tag: Tag) -> None:
        name = tag.name
        if name in ("ul", "ol"):
            self._list(tag)
        elif name == "li":
            if not tag.closing:
                self._item()
        elif name == "a":
            self._link(tag)
        elif name == "img" and (alt := tag.attributes().get("alt")):
            self.add(f"[image: {alt[:MAX_LINK]}]")
        elif name == "br":
            self.add("\n")
        elif name in ("td", "th"):
            self.add("" if tag.closing else " | ")
        elif name == "tr":
            self.add("\n")
        elif name == "hr":
            self.add("\n\n---\n\n")
        elif name == "pre":
            self.pre = 0 if tag.closing else 1
            self.add("\n```\n\n" if tag.closing else "\n\n```\n")
        elif BLOCKS.fullmatch(name):
            self.add("\n\n")

    def _list(self, tag: Tag) -> None:
        if not tag.closing:
            self.lists.append(1 if tag.name == "ol" else None)
        elif self.lists:
            self.lists.pop()
        self.add("\n" if self.lists else "\n\n")

    def _item(self) -> None:
        number = self.lists[-1] if self.lists else None
        if number is not None:
            self.lists[-1] = number + 1
        indent = "  " * min(max(len(self.lists) - 1, 0), MAX_INDENT)
        self.add(f"\n{indent}{'-' if number is None else f'{number}.'} ")

    def _link(self, tag: Tag) -> None:
        if self.link is not None:
            self.add(f"]({self.link})")
            self.link = None
        if not tag.closing and (url := self._url(tag.attributes().get("href", ""))):
            self.link = url
            self.add("[")

    def _url(self, href: str) -> str | None:
        if not href or href.startswith("#"):
            return None
        try:
            url = urljoin(self.base, href)
        except ValueError:
            return None
        url = "".join(url.split()).replace(")", "%29")
        return (
            url
            if url.lower().startswith(("http://", "https://")) and len(url) <= MAX_LINK
            else None
        )
