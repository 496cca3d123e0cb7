"""The tool value and the decorator that makes one of a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, overload

from asgiref.sync import async_to_sync

from nexo_django.exceptions import ConfigurationError, InvalidArguments
from nexo_django.pipeline import Env
from nexo_django.tools.docstrings import parse
from nexo_django.tools.results import ToolResult, as_result
from nexo_django.tools.schema import ENV_NAMES, Schema, Signature


class Tool:
    """A function with what a model must know of it.

    Subclasses set the attributes and define `execute`. `parameters` is a JSON schema; without
    one it is made from the function's type hints and docstring. `idempotent` says that a call
    that was cut short may simply run again. A parameter that is typed `Env`, or is called
    `env` or `context` and has no type, gets the turn's env and is not shown to the model.
    """

    name: str = ""
    description: str = ""
    parameters: Schema | None = None
    idempotent: bool = False
    capability: str | None = None

    def __init__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        idempotent: bool | None = None,
        capability: str | None = None,
    ) -> None:
        self.fn = fn if fn is not None else getattr(self, "execute", None)
        if not callable(self.fn):
            raise ConfigurationError(
                f"The tool {name or type(self).__name__} needs a function to call: fn=, or a "
                f"method execute()."
            )
        said, described = parse(self.fn.__doc__)
        inherited = "" if fn is not None else parse(type(self).__doc__)[0]
        self.name = name or self.name or _name_of(self, fn)
        self.description = description or self.description or said or _own(self, inherited)
        self.idempotent = self.idempotent if idempotent is None else idempotent
        self.capability = capability or self.capability
        schema = parameters if parameters is not None else self.parameters
        self.signature = None if schema is not None else Signature(self.fn, described)
        self.parameters = self.signature.parameters if self.signature else dict(schema or {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def definition(self) -> dict[str, Any]:
        """Give what a provider is told of the tool."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    def run(self, arguments: Mapping[str, Any], env: Env | None = None) -> ToolResult:
        """Check the arguments, run the function and wrap what it gives.

        Blocks until an async function is done, in an event loop of its own. Raises
        InvalidArguments, and whatever the function raises.
        """
        value = self._function(**self._bound(arguments, env))
        if inspect.isawaitable(value):
            value = async_to_sync(_awaited)(value)
        return as_result(value)

    @property
    def _function(self) -> Callable[..., Any]:
        assert self.fn is not None
        return self.fn

    def _bound(self, arguments: Mapping[str, Any], env: Env | None) -> dict[str, Any]:
        if self.signature is not None:
            return self.signature.bind(arguments, env)
        schema = self.parameters or {}
        missing = [name for name in schema.get("required", ()) if name not in arguments]
        if missing:
            raise InvalidArguments(f"Invalid arguments: {', '.join(missing)} missing.")
        unknown = set(arguments) - set(schema.get("properties", ()))
        if unknown and schema.get("additionalProperties", True) is False:
            names = ", ".join(sorted(unknown))
            raise InvalidArguments(f"Invalid arguments: {names} not known.")
        return {**arguments, **dict.fromkeys(self._env_names(schema), env)}

    def _env_names(self, schema: Mapping[str, Any]) -> list[str]:
        names = inspect.signature(self._function).parameters
        return [n for n in ENV_NAMES if n in names and n not in schema.get("properties", ())]


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    capability: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function; used bare or with options."""
    if fn is not None:
        return Tool(fn, **options)
    return lambda function: Tool(function, **options)


async def _awaited(value: Any) -> Any:
    return await value


def _name_of(tool: Tool, fn: Callable[..., Any] | None) -> str:
    if fn is None:
        return snake(type(tool).__name__)
    while not hasattr(fn, "__name__") and hasattr(fn, "func"):
        fn = fn.func
    return str(getattr(fn, "__name__", snake(type(fn).__name__)))


def _own(tool: Tool, said: str) -> str:
    return said if type(tool) is not Tool else ""


def snake(name: str) -> str:
    """Turn a class name into a tool name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
