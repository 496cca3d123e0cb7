"""How `nexo/offline` answers in JSON: with the JSON it was given, or with what it was told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MISSING = object()


def filled(schema: str, text: str, facts: Mapping[str, str]) -> str:
    """Give JSON for a schema, or say in words what is missing for it.

    JSON in the text is given back as it is. Else each key of the object is taken from the facts
    or from "key = value" in the text; a list of numbers from the numbers in it.
    """
    given = _json(text)
    if given is not None:
        return given
    rules = json.loads(schema)
    values: dict[str, Any] = {}
    for name, rule in rules.get("properties", {}).items():
        value = _value(name, rule, text, facts)
        if value is not _MISSING:
            values[name] = value
        elif name in rules.get("required", ()):
            return f"I was not told the {name.replace('_', ' ')}, so I can't answer in this form."
    return json.dumps(values, ensure_ascii=False)


def _json(text: str) -> str | None:
    for match in re.finditer(r"[\[{]", text):
        try:
            _, end = json.JSONDecoder().raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        return text[match.start() : end]
    return None


def _value(name: str, rule: Any, text: str, facts: Mapping[str, str]) -> Any:
    words = name.replace("_", " ").lower()
    kind = rule.get("type") if isinstance(rule, Mapping) else None
    if kind == "array":
        items = rule.get("items") or {}
        numbers = [json.loads(found) for found in _NUMBER.findall(text)]
        return numbers if items.get("type") in ("integer", "number") else _MISSING
    pair = re.search(rf"\b{re.escape(name)} ?[=:] ?([^,;\n]+)", text, re.IGNORECASE)
    said = facts.get(words) or (pair[1].strip(" .\"'") if pair else None)
    if said is None:
        return _MISSING
    return said if kind == "string" else _read(said)


def _read(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return said
