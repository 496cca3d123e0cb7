"""Answers of a declared type: what the model is asked for, and what it said as a value.

The type's schema is kept in the prompt's message as a part of type "output": a turn that goes
on elsewhere, or is replayed later, asks for the same with the same bytes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.messages import NOTICE, USER, Message
from nexo_django.transcript import last_prompt

OUTPUT = "output"
# Marks the message that tells the model what is wrong with its answer.
MARK = "output_repair"
# What a schema that is no object's is put under: providers take objects only.
RESULT = "result"
MAX_PROBLEMS = 10
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_UNNAMEABLE = re.compile(r"[^a-zA-Z0-9_-]+")
# What every provider that holds a model to a schema understands of one.
_HELD = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "items",
        "properties",
        "required",
        "type",
    }
)
# What some refuse; the model reads it in words, and the answer is checked for it.
_TOLD = frozenset(
    {
        "default",
        "discriminator",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "multipleOf",
        "pattern",
        "title",
        "uniqueItems",
    }
)


class Unfit(Exception):
    """What the model said is no value of the type; `errors` are pydantic's, without the input."""

    def __init__(self, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(f"{len(errors)} error(s)")
        self.errors = [dict(error) for error in errors]


@dataclass(frozen=True)
class Output:
    """A type that an answer must have: a pydantic model, or whatever pydantic can check."""

    name: str
    adapter: TypeAdapter[Any]
    schema: str

    @classmethod
    def of(cls, wanted: Any) -> Output:
        """Take the type that a prompt asks for, or raise ConfigurationError."""
        if isinstance(wanted, cls):
            return wanted
        if _is_no_type(wanted):
            raise ConfigurationError(
                f"output is {brief(wanted)}; give a pydantic model, a dataclass, a TypedDict, or "
                f"a type such as list[int]."
            )
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(wanted)
            schema = adapter.json_schema()
        except (PydanticUserError, TypeError, NameError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigurationError(
                f"output is {brief(wanted)}, which JSON can't describe: {reason}"
            ) from error
        name = _UNNAMEABLE.sub("_", getattr(wanted, "__name__", "") or "answer").strip("_")[:64]
        text = json.dumps(_as_object(schema), ensure_ascii=False, separators=(",", ":"))
        return cls(name or "answer", adapter, text)

    @property
    def part(self) -> dict[str, Any]:
        """The part of the prompt that asks for it."""
        return {"type": OUTPUT, "name": self.name, "schema": self.schema}

    def parse(self, text: str) -> Any:
        """Give what an answer says as a value of the type, or raise Unfit."""
        first: Unfit | None = None
        for found in _values(text):
            try:
                return self._checked(found)
            except Unfit as unfit:
                first = first or unfit
        raise first or Unfit([{"type": "json_invalid", "loc": (), "msg": "There is no JSON in it"}])

    def to_json(self, value: Any) -> Any:
        """Give a value of the type as JSON holds it."""
        return self.adapter.dump_python(value, mode="json")

    def _checked(self, found: Any) -> Any:
        try:
            return self._validated(found)
        except Unfit:
            if not (isinstance(found, dict) and found.keys() == {RESULT}):
                raise
        return self._validated(found[RESULT])

    def _validated(self, found: Any) -> Any:
        try:
            return self.adapter.validate_json(json.dumps(found))
        except ValidationError as error:
            told = error.errors(include_url=False, include_input=False, include_context=False)
            raise Unfit(told) from None


def _is_no_type(wanted: Any) -> bool:
    return wanted is None or inspect.isroutine(wanted) or isinstance(wanted, str | bytes | Mapping)


def is_output(part: Any) -> bool:
    """Whether a part asks for an answer of a type."""
    return isinstance(part, Mapping) and part.get("type") == OUTPUT


def asked(messages: Sequence[Message]) -> dict[str, Any] | None:
    """Give the part of the turn's prompt that asks for a type; None where none does."""
    prompt = last_prompt(messages)
    parts = () if prompt is None else messages[prompt].parts or ()
    return next((part for part in parts if is_output(part)), None)


def instruction(part: Mapping[str, Any]) -> str:
    """Say in words what the part asks for; the same for every model."""
    return (
        "Answer this message with one JSON value and nothing else: no words around it, no code "
        f"fence. Tools may be called first. The JSON must fit this schema:\n{part.get('schema')}"
    )


def response_format(part: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the part asks for in the form of providers that hold the model to it."""
    schema, strict = json.loads(part["schema"]), True
    try:
        schema = _closed(schema)
    except _Open:
        strict = False
    told = {"name": part["name"], "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": told}


def repair(output: Output, unfit: Unfit) -> Message:
    """Make the message that tells the model what was wrong; not one of the user's."""
    lines = [f"- {where(error)}: {error['msg']}" for error in unfit.errors[:MAX_PROBLEMS]]
    if len(unfit.errors) > MAX_PROBLEMS:
        lines.append(f"- and {len(unfit.errors) - MAX_PROBLEMS} more")
    text = "\n".join(["[Your answer does not fit what was asked for:", *lines])
    return Message(USER, f"{text}\n\n{instruction(output.part)}]", kind=NOTICE, mark=MARK)


def repairs(messages: Sequence[Message]) -> int:
    """Count how often the model was told so in this turn."""
    start = last_prompt(messages) or 0
    return sum(m.kind == NOTICE and m.mark == MARK for m in messages[start:])


def where(error: Mapping[str, Any]) -> str:
    """Name the place of an error in the answer."""
    return ".".join(str(step)[:80] for step in error.get("loc", ())) or "the whole answer"


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    root = schema
    if "$ref" in root:
        root = schema.get("$defs", {}).get(root["$ref"].rpartition("/")[2], {})
    if root.get("type") == "object":
        return schema if root is schema else {**root, "$defs": schema["$defs"]}
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    made = {
        "type": "object",
        "properties": {RESULT: inner},
        "required": [RESULT],
        "additionalProperties": False,
    }
    return {**made, "$defs": schema["$defs"]} if "$defs" in schema else made


class _Open(Exception):
    """A schema has an object whose keys are not known, or what is not understood everywhere."""


def _closed(schema: Any) -> Any:
    """Give a schema whose objects have all of their keys and no others, or raise _Open.

    A key with a default is asked for too: the model says what it is.
    """
    if not isinstance(schema, dict):
        raise _Open
    kept = {key: value for key, value in schema.items() if key not in _TOLD}
    if "oneOf" in kept:
        kept["anyOf"] = kept.pop("oneOf")
    if "$ref" in kept:
        return {"$ref": kept["$ref"]}
    if kept.keys() - _HELD or not kept:
        raise _Open
    if kept.get("type") == "object":
        if not kept.get("properties") or kept.get("additionalProperties"):
            raise _Open
        kept["additionalProperties"], kept["required"] = False, list(kept["properties"])
    for key in {"properties", "$defs"} & kept.keys():
        kept[key] = {name: _closed(inner) for name, inner in kept[key].items()}
    if "items" in kept:
        kept["items"] = _closed(kept["items"])
    if "anyOf" in kept:
        kept["anyOf"] = [_closed(inner) for inner in kept["anyOf"]]
    return kept


def _values(text: str) -> Iterator[Any]:
    """Give the JSON values that an answer may be: all of it, what is fenced, the first within."""
    for candidate in (text.strip(), *(found.strip() for found in _FENCED.findall(text)[:3])):
        try:
            yield json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    decoder = json.JSONDecoder()
    for match in list(re.finditer(r"[\[{]", text))[:20]:
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if text[: match.start()].strip() or text[end:].strip():
            yield value
        return
