"""What an answer's body says, as text: its type, its characters, and HTML made readable."""

from __future__ import annotations

import codecs
import re
from email.message import Message

from nexo_django.fetch.exchange import Answer
from nexo_django.fetch.markdown import markdown

HTML = ("text/html", "application/xhtml+xml")
TEXTS = (
    "application/json",
    "application/xml",
    "application/javascript",
    "application/x-javascript",
    "application/ecmascript",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/x-ndjson",
    "application/x-sh",
    "application/sql",
    "application/x-www-form-urlencoded",
    "image/svg+xml",
)
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Python knows encodings that are none of a page's, and slow ones among them.
_CHARSETS = re.compile(
    r"ascii|utf-8|utf-16(-[lb]e)?|iso8859-\d+|cp125\d|cp8\d\d|cp9\d\d|koi8-[rut]|mac-\w+|gb2312|gbk|"
    r"gb18030|big5(hkscs)?|shift_jis(_2004|x0213)?|euc_(jp|kr|jis_2004)|iso2022_(jp|kr)\w*|tis-620"
)
_DECLARED = re.compile(rb"(?i)(?:charset|encoding)\s*=\s*[\"']?\s*([a-z0-9_:.-]{1,40})")
SNIFFED = 2048


def told(answer: Answer) -> str:
    """Give what a model is told of an answer."""
    kind, charset = media_type(answer.headers.get("content-type", ""))
    kind = kind or _guessed(answer.body)
    reason = f" {answer.reason[:100]}" if answer.reason else ""
    lines = [f"{answer.target.url} answered {answer.status}{reason} ({kind})"]
    if not is_text(kind):
        lines.append(f"The body is not text: {len(answer.body)} bytes of {kind} are not shown.")
        return "\n".join(lines)
    text = decoded(answer.body, charset)
    if kind in HTML:
        title, text = markdown(text, answer.target.url)
        if title:
            lines.append(f"Title: {title}")
    lines.append(f"\n{text}" if text.strip() else "The page has no text.")
    if answer.cut:
        lines.append(f"\n[Only the first {len(answer.body)} bytes of the page were read.]")
    return "\n".join(lines)


def media_type(header: str) -> tuple[str, str | None]:
    """Give the type and the charset of a Content-Type header."""
    message = Message()
    message["Content-Type"] = " ".join(header.split())[:500]
    if not header.strip():
        return "", None
    charset = message.get_param("charset")
    return message.get_content_type(), charset if isinstance(charset, str) else None


def is_text(kind: str) -> bool:
    """Whether a type is one that a model can read."""
    return (
        kind in HTML
        or kind in TEXTS
        or kind.startswith("text/")
        or kind.endswith(("+json", "+xml", "+yaml"))
    )


def decoded(data: bytes, charset: str | None) -> str:
    """Give a body as text: by its byte order mark, its header, what it says itself, or UTF-8."""
    found = next((name for bom, name in BOMS if data.startswith(bom)), None)
    found = found or _known(charset) or _known(_declared(data))
    if found is not None:
        return data.decode(found, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # A character that was cut at the end makes it no other encoding.
        cut = error.reason == "unexpected end of data"
        return data.decode("utf-8" if cut else "cp1252", "replace")


def _declared(data: bytes) -> str | None:
    found = _DECLARED.search(data[:SNIFFED])
    return found[1].decode() if found else None


def _known(charset: str | None) -> str | None:
    try:
        name = codecs.lookup(charset or "").name
    except (LookupError, ValueError):
        return None
    # Browsers read it so, since pages mean it so.
    name = "cp1252" if name == "iso8859-1" else name
    return name if _CHARSETS.fullmatch(name) else None


def _guessed(data: bytes) -> str:
    start = data[:SNIFFED]
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "text/html"
    printable = b"\x00" not in start or start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain" if printable else "application/octet-stream"
