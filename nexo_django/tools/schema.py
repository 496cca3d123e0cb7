"""From a function's signature to the JSON schema a model reads, and from a call's arguments back."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from nexo_django.exceptions import ConfigurationError, InvalidArguments
from nexo_django.pipeline import Env

Schema = dict[str, Any]
ENV_NAMES = ("env", "context")
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
MAX_PROBLEMS = 10
# Keys whose values are data, not schemas.
_VALUES = ("default", "const", "enum", "examples", "required")


class Signature:
    """What a function takes: `parameters` is the schema, `bind` makes its arguments."""

    def __init__(
        self, name: str, function: Callable[..., Any], described: Mapping[str, str]
    ) -> None:
        self.name = name
        self.env_names: list[str] = []
        self.taken: list[str] = []
        self.open = False
        hints = _hints(function)
        fields: dict[str, Any] = {}
        for parameter in _parameters(name, function):
            hint = hints.get(parameter.name, Any)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self.open = True
            elif _wants_env(parameter.name, hint):
                self.env_names.append(parameter.name)
            else:
                # Fields get names of their own: a parameter may be called "schema" or "_x".
                field = _field(parameter, hint, described.get(parameter.name))
                fields[f"p{len(self.taken)}"] = (_type(parameter, hint, name), field)
                self.taken.append(parameter.name)
        self.model = self._model(fields)
        self.parameters = _plain(self.model.model_json_schema(by_alias=True))

    def bind(self, arguments: Mapping[str, Any], env: Env | None) -> dict[str, Any]:
        """Check and convert a call's arguments; raises InvalidArguments, as the model reads it."""
        try:
            given = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            raise InvalidArguments(self._complaint(error)) from None
        values = {
            name: getattr(given, f"p{index}")
            for index, name in enumerate(self.taken)
            if f"p{index}" in given.model_fields_set
        }
        return {**values, **(given.model_extra or {}), **dict.fromkeys(self.env_names, env)}

    def _model(self, fields: dict[str, Any]) -> type[BaseModel]:
        config = ConfigDict(
            extra="allow" if self.open else "forbid",
            coerce_numbers_to_str=True,
        )
        try:
            model: type[BaseModel] = create_model(self.name, __config__=config, **fields)
            model.model_json_schema()
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise ConfigurationError(
                f"The tool {self.name} has a parameter that JSON can't describe: "
                f"{str(error).splitlines()[0].partition('. Set')[0]}"
            ) from error
        return model

    def _complaint(self, error: ValidationError) -> str:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
        ]
        names = ", ".join(self.taken) or "none"
        return f"Invalid arguments: {'; '.join(problems)}. {self.name} takes: {names}."


def plain_function(function: Any) -> Any:
    """Find the function that a partial or a wrapper stands for."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{function!r} does not say what it takes; wrap it in a function that does."
        ) from error
    for parameter in parameters:
        if parameter.kind in _UNNAMED:
            raise ConfigurationError(
                f"The tool {name} takes {parameter.name} by position; a model gives every argument "
                f"by name."
            )
        if parameter.name in ("self", "cls"):
            raise ConfigurationError(
                f"The tool {name} is a method without its object; make a tool of the bound "
                f"method, or derive a class from Tool."
            )
    return parameters


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = plain_function(function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:
        return _hints_one_by_one(target)


def _hints_one_by_one(target: Any) -> dict[str, Any]:
    """Resolve what can be: the type of `env` is often imported for type checkers only."""
    hints = dict(getattr(target, "__annotations__", {}))
    space = getattr(target, "__globals__", {})
    for name, hint in hints.items():
        if isinstance(hint, str):
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                hints.update(typing.get_type_hints(alone, space, include_extras=True))
            except Exception:
                hints[name] = _Unknown(hint)
    return hints


class _Unknown:
    """An annotation whose name means nothing where the function was defined."""

    def __init__(self, text: str) -> None:
        self.text = text


def _wants_env(name: str, hint: Any) -> bool:
    if hint is Env or Env in typing.get_args(hint):
        return True
    return name in ENV_NAMES and (hint in (Any, object) or isinstance(hint, _Unknown))


def _type(parameter: inspect.Parameter, hint: Any, function: str) -> Any:
    if isinstance(hint, _Unknown):
        raise ConfigurationError(
            f"The type {hint.text} of the parameter {parameter.name} of the tool {function} "
            f"can't be resolved; import it at the top of the module."
        )
    # Models send null for what may be left out, and `city: str = None` is often written.
    return hint | None if parameter.default is None else hint


def _field(parameter: inspect.Parameter, hint: Any, description: str | None) -> Any:
    options: dict[str, Any] = {"alias": parameter.name}
    said = description or next((m for m in typing.get_args(hint)[1:] if _is_note(hint, m)), None)
    if said:
        options["description"] = said
    default = parameter.default
    if default is inspect.Parameter.empty:
        return Field(**options)
    if default is None or isinstance(default, str | int | float):
        return Field(default=default, **options)
    return Field(default_factory=lambda: default, **options)


def _is_note(hint: Any, part: Any) -> bool:
    """Whether a part of `Annotated[str, "the city"]` is its description."""
    return typing.get_origin(hint) is typing.Annotated and isinstance(part, str)


def _plain(schema: Schema) -> Schema:
    """Bring a schema to the form all providers take: no titles, references or open objects."""
    definitions = schema.pop("$defs", {})
    plain = _walk(schema, definitions)
    ordered = {
        "type": "object",
        "properties": plain.get("properties", {}),
        "required": plain.get("required", []),
        "additionalProperties": plain.get("additionalProperties", False),
    }
    if kept := _recursive(definitions):
        ordered["$defs"] = {name: _walk(definitions[name], definitions) for name in kept}
    return ordered


def _recursive(definitions: Mapping[str, Schema]) -> list[str]:
    """Name the definitions that contain themselves; only they stay references."""
    return sorted(name for name in definitions if name in _reached(definitions, name))


def _reached(definitions: Mapping[str, Schema], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [definitions[start]]
    while todo:
        for name in _references(todo.pop()):
            if name not in seen:
                seen.add(name)
                todo.append(definitions[name])
    return seen


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    if not isinstance(value, dict):
        return []
    own = value.get("$ref")
    found = [_target(own)] if isinstance(own, str) else []
    return found + [name for item in value.values() for name in _references(item)]


def _target(reference: str) -> str:
    return reference.rpartition("/")[2]


def _walk(schema: Any, definitions: Mapping[str, Schema]) -> Any:
    if isinstance(schema, list):
        return [_walk(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _resolved(schema, _target(reference), definitions)
    walked = {
        key: _part(key, value, definitions)
        for key, value in schema.items()
        if key not in ("title", "discriminator")
    }
    if "properties" in walked:
        walked.setdefault("additionalProperties", False)
    return walked


def _part(key: str, value: Any, definitions: Mapping[str, Schema]) -> Any:
    if key == "properties":
        return {name: _walk(part, definitions) for name, part in value.items()}
    return value if key in _VALUES else _walk(value, definitions)


def _resolved(schema: Schema, name: str, definitions: Mapping[str, Schema]) -> Schema:
    if name in _reached(definitions, name):
        return {"$ref": schema["$ref"]}
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    return {**_walk(definitions[name], definitions), **_walk(beside, definitions)}
