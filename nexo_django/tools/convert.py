"""From what people write in `tools = [...]` to tools, and what is refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.tools.base import Tool
from nexo_django.tools.built_in import built_in

# What every provider takes.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def as_tool(value: Any) -> Tool:
    """Make a tool of a function, a Tool class, a dictionary, an object with a name, or the
    name of a built-in tool.

    The dictionary has name, description, params and execute (or handler); the object the
    same as attributes, or is itself callable.
    """
    if isinstance(value, Tool):
        return value
    if isinstance(value, str):
        return built_in(value)
    if isinstance(value, type):
        if issubclass(value, Tool):
            return value()
        raise ConfigurationError(f"{value.__qualname__} is no tool class; derive it from Tool.")
    if isinstance(value, Mapping):
        return _described(value, repr(sorted(map(str, value))))
    if isinstance(getattr(value, "name", None), str):
        named = ("name", "description", "params", "parameters", "idempotent", "capability")
        parts = {key: getattr(value, key) for key in named if hasattr(value, key)}
        return _described({**parts, "execute": _entry(value)}, type(value).__name__)
    if inspect.isfunction(value) and value.__closure__ is None:
        return _of_function(value)
    if callable(value):
        return Tool(value)
    raise ConfigurationError(
        f"{brief(value)} is no tool: give a function, a Tool, the name of a built-in tool, or a "
        f"dictionary with name, description, params and execute."
    )


def resolve(tools: Iterable[Any] | None) -> list[Tool]:
    """Make tools of all, in order; refuses names that providers refuse, or that are there twice."""
    found: dict[str, Tool] = {}
    for value in tools or ():
        tool = as_tool(value)
        if not _NAME.fullmatch(tool.name):
            raise ConfigurationError(
                f"The tool name {brief(tool.name)} is not 1 to 64 letters, digits, _ or -; "
                f"give it another with name=."
            )
        if tool.name in found:
            raise ConfigurationError(
                f"Two tools are called {tool.name!r}; give one of them another name."
            )
        found[tool.name] = tool
    return list(found.values())


@lru_cache(maxsize=256)
def _of_function(function: Callable[..., Any]) -> Tool:
    """Make a tool once: a schema takes a millisecond, and a stack is built for every turn."""
    return Tool(function)


def _described(parts: Mapping[str, Any], what: str) -> Tool:
    function = parts.get("execute") or parts.get("handler")
    if not isinstance(parts.get("name"), str) or not callable(function):
        raise ConfigurationError(f"The tool {what} needs a name and a callable as execute.")
    params = parts.get("params", parts.get("parameters"))
    return Tool(
        function,
        name=parts["name"],
        description=parts.get("description"),
        parameters=None if params is None else _schema(params),
        idempotent=bool(parts.get("idempotent", False)),
        capability=parts.get("capability"),
    )


def _entry(value: Any) -> Any:
    for name in ("execute", "call", "handler"):
        if callable(method := getattr(value, name, None)):
            return method
    return value if callable(value) else None


def _schema(params: Mapping[str, Any]) -> dict[str, Any]:
    """Take a JSON schema as it is, and make one of `{name: type}` or `{name: {type, desc, required}}`."""
    if params.get("type") == "object" and isinstance(params.get("properties", {}), Mapping):
        return {"properties": {}, **params}
    given = {
        key: dict(value) if isinstance(value, Mapping) else {"type": value}
        for key, value in params.items()
    }
    required = [key for key, value in given.items() if value.pop("required", True)]
    for value in given.values():
        if "desc" in value:
            value["description"] = value.pop("desc")
        value["type"] = str(value.get("type", "string"))
    return {
        "type": "object",
        "properties": given,
        "required": required,
        "additionalProperties": False,
    }
