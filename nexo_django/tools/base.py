"""The tool value and the decorator that makes one of a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, overload

from asgiref.sync import async_to_sync

from nexo_django import permissions
from nexo_django.exceptions import ConfigurationError, InvalidArguments
from nexo_django.pipeline import Env
from nexo_django.tools.docstrings import parse
from nexo_django.tools.results import ToolResult, as_result
from nexo_django.tools.schema import ENV_NAMES, Schema, Signature, plain_function


class Tool:
    """A function with what a model must know of it.

    Subclasses set the attributes and define `execute`. `parameters` is a JSON schema; without
    one it is made from the function's type hints and docstring. `idempotent` says that a call
    that was cut short may simply run again. `capability` (read, glob, write, shell, fetch or
    search), or `mcp`, the "server/tool" that it stands for, puts its calls under the agent's
    permissions; a tool with neither is the host's own code and always allowed. A parameter
    that is typed `Env`, or is called `env` or `context` and has no type, gets the turn's env
    and is not shown to the model.
    """

    name: str = ""
    description: str = ""
    parameters: Schema = {}
    idempotent: bool = False
    capability: str | None = None
    mcp: str | None = None
    # Its calls are answered by the user and never run.
    asks_user: bool = False

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
        self.fn: Callable[..., Any] = fn or self._execute()
        said, described = parse(inspect.getdoc(plain_function(self.fn)))
        if not said and type(self) is not Tool:
            said = parse(type(self).__doc__)[0]
        self.name = name or self.name or _name_of(plain_function(fn) if fn else type(self))
        self.description = description or self.description or said
        self.idempotent = self.idempotent if idempotent is None else idempotent
        self.capability = capability or self.capability
        if self.capability is not None:
            permissions.known(self.capability, f"The tool {self.name!r}")
        schema = parameters if parameters is not None else self.parameters
        self.signature = None if schema else Signature(self.name, self.fn, described)
        self.parameters = self.signature.parameters if self.signature else dict(schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

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

        Blocks until an async function is done, in an event loop of its own; an iterator is
        read to its end. Raises InvalidArguments, and whatever the function raises.
        """
        value = self.fn(**self.bound(arguments, env))
        if isinstance(value, AsyncIterator):
            value = _gathered(value)
        if inspect.isawaitable(value):
            value = async_to_sync(_awaited)(value)
        if isinstance(value, Iterator):
            value = list(value)
        return as_result(value)

    def bound(self, arguments: Mapping[str, Any], env: Env | None = None) -> dict[str, Any]:
        """Give what the function is called with, or raise InvalidArguments."""
        bind = self.signature.bind if self.signature else self._bind
        return bind(arguments, env)

    def offered_to(self, agent: Any) -> bool:
        """Whether there is anything that the tool could do for an agent; if not, it is left out."""
        return True

    def _execute(self) -> Callable[..., Any]:
        method = getattr(self, "execute", None)
        if not callable(method):
            raise ConfigurationError(
                f"{type(self).__name__} has nothing to call: give it a function, or derive a "
                f"class with a method execute()."
            )
        return method  # type: ignore[no-any-return]

    def _bind(self, arguments: Mapping[str, Any], env: Env | None) -> dict[str, Any]:
        """Check a call by a schema that was given: no type is known to convert to."""
        known = self.parameters.get("properties", {})
        missing = [name for name in self.parameters.get("required", ()) if name not in arguments]
        if missing:
            raise InvalidArguments(f"Invalid arguments: {', '.join(missing)} missing.")
        unknown = [name for name in arguments if name not in known]
        if unknown and self.parameters.get("additionalProperties") is False:
            raise InvalidArguments(f"Invalid arguments: {', '.join(unknown)} not known.")
        taken = inspect.signature(self.fn).parameters
        wanted = [name for name in ENV_NAMES if name in taken and name not in known]
        return {**arguments, **dict.fromkeys(wanted, env)}


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
    if fn is None:
        return lambda function: Tool(function, **options)
    if isinstance(fn, str):
        raise TypeError(f"@tool takes a function; for a name write @tool(name={fn!r}).")
    return Tool(fn, **options)


async def _awaited(value: Any) -> Any:
    return await value


async def _gathered(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


def _name_of(called: Any) -> str:
    if inspect.isroutine(called):
        return called.__name__
    name = called.__name__ if isinstance(called, type) else type(called).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
