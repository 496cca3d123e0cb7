"""What a server gives back, as a result that the model reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from nexo_django.sanitize import clean_json, clean_text
from nexo_django.tools import ToolResult


def of_call(result: Any) -> ToolResult:
    """Give the result of a tool: its texts, what else it holds described, and its data."""
    parts = [block(item) for item in result.content]
    data = result.structured_content
    if data is not None and not _says(result.content, data):
        parts.append(json.dumps(clean_json(data), ensure_ascii=False))
    return ToolResult("\n".join(parts) or "(no content)", is_error=bool(result.is_error))


def of_resource(result: Any) -> str:
    """Give what a resource holds."""
    return "\n".join(_contents(item) for item in result.contents) or "(no content)"


def of_prompt(result: Any) -> str:
    """Give a prompt's messages as one text; those that are not the user's say whose they are."""
    return "\n\n".join(
        block(item.content) if item.role == "user" else f"{item.role}: {block(item.content)}"
        for item in result.messages
    )


def listed(resources: Iterable[Any], templates: Iterable[Any]) -> str:
    """List what can be read, a resource a line."""
    lines = [f"{item.uri}{_noted(item)}" for item in resources]
    lines += [f"{item.uri_template}{_noted(item)} (fill in the braces)" for item in templates]
    return clean_text("\n".join(lines)) or "(no resources)"


def block(item: Any) -> str:
    """Give a block of content as text; what is no text is described."""
    kind = getattr(item, "type", "")
    if kind == "text":
        return clean_text(item.text)
    if kind in ("image", "audio"):
        return f"[{kind} {clean_text(item.mime_type)}, {_size(item.data)} bytes, not shown]"
    if kind == "resource":
        return f"[resource {clean_text(str(item.resource.uri))}]\n{_contents(item.resource)}"
    if kind == "resource_link":
        return clean_text(f"[resource {item.uri}{_noted(item)}]")
    return f"[{clean_text(str(kind)) or 'content'}, not shown]"


def _contents(item: Any) -> str:
    if (text := getattr(item, "text", None)) is not None:
        return clean_text(text)
    kind = clean_text(item.mime_type or "data")
    return f"[{kind}, {_size(item.blob)} bytes, not shown]"


def _size(encoded: str) -> int:
    return len(encoded.rstrip("=")) * 3 // 4


def _noted(item: Any) -> str:
    said = [item.name or "", item.mime_type or "", " ".join((item.description or "").split())]
    shown = ", ".join(part for part in said if part)
    return f" ({shown})" if shown else ""


def _says(content: Iterable[Any], data: Any) -> bool:
    """Whether the text blocks are the data already, as servers are told to write it.

    The official package puts a result that is no object into one, as its "result".
    """
    texts = [item.text for item in content if getattr(item, "type", "") == "text"]
    wrapped = data["result"] if isinstance(data, dict) and data.keys() == {"result"} else data
    found = [_read(text) for text in texts]
    return any(one in (data, wrapped) for one in [*found, *texts]) or wrapped in (found, texts)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
