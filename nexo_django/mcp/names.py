"""The names under which a model is offered what servers have, and their schemas."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nexo_django.sanitize import clean_json

MAX_NAME = 64
_WRONG = re.compile(r"[^a-zA-Z0-9_-]")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_DROPPED = ("$schema", "$id", "$comment", "$defs", "definitions", "title")
_COMBINED = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
# Keys whose values are data, not schemas.
_DATA = ("default", "const", "enum", "examples", "required", "type", "description")
MAX_NODES, MAX_DEPTH, MAX_SCHEMA = 2_000, 20, 32_768
ANYTHING: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": True,
}


def offered_name(server: str, tool: str, taken: Iterable[str]) -> str:
    """Give a name that providers take and nothing else has: `server__tool`, or near it."""
    whole = f"{server}__{tool}"
    name = _WRONG.sub("_", whole)
    if len(name) <= MAX_NAME and name not in taken:
        return name
    mark = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{mark}"


def schema(given: Any) -> dict[str, Any]:
    """Bring a server's schema to the form that providers take.

    References are put in, and what only decorates is left out. A schema that is none, that
    holds itself, or that is too large is narrowed to what can be said: the server checks the
    arguments itself.
    """
    if not isinstance(given, Mapping):
        return dict(ANYTHING)
    try:
        walked = _Walk(given).object()
        fits = len(json.dumps(walked)) <= MAX_SCHEMA
    except (_TooLarge, RecursionError, TypeError, ValueError):
        return dict(ANYTHING)
    return walked if fits else dict(ANYTHING)


class _TooLarge(Exception):
    """A schema has more parts than anybody would write."""


class _Walk:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.nodes = 0

    def object(self) -> dict[str, Any]:
        found = {key: value for key, value in self.root.items() if key not in _COMBINED}
        plain = self.part(found, ())
        properties = plain.get("properties")
        kept = {
            name: value
            for name, value in (properties if isinstance(properties, dict) else {}).items()
            if _PROPERTY.fullmatch(name)
        }
        required = plain.get("required")
        named = required if isinstance(required, list) else []
        open_ = plain.get("additionalProperties", True)
        return {
            "type": "object",
            "properties": kept,
            "required": [name for name in named if isinstance(name, str) and name in kept],
            "additionalProperties": open_ if isinstance(open_, bool | dict) else True,
        }

    def part(self, value: Any, around: tuple[str, ...]) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(around) > MAX_DEPTH:
            raise _TooLarge
        if isinstance(value, list):
            return [self.part(item, around) for item in value]
        if not isinstance(value, Mapping):
            return clean_json(value)
        if isinstance(reference := value.get("$ref"), str):
            return self.resolved(reference, value, around)
        return {
            str(key): self.value(str(key), item, around)
            for key, item in value.items()
            if key not in _DROPPED
        }

    def value(self, key: str, value: Any, around: tuple[str, ...]) -> Any:
        if key in ("properties", "patternProperties") and isinstance(value, Mapping):
            return {str(name): self.part(item, (*around, "")) for name, item in value.items()}
        return clean_json(value) if key in _DATA else self.part(value, (*around, ""))

    def resolved(self, reference: str, value: Mapping[str, Any], around: tuple[str, ...]) -> Any:
        target: Any = self.root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, Mapping) else None
        if reference in around or not reference.startswith("#/") or not isinstance(target, Mapping):
            # Elsewhere, or inside itself: anything may stand there.
            target = {}
        beside = {key: item for key, item in value.items() if key != "$ref"}
        return self.part({**target, **beside}, (*around, reference))
