"""Agents: classes that declare a model, instructions, tools and limits.

Everything an agent may do comes from its class (or from what the host passes to `resume`),
never from a stored row: a resumed session gains nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.utils.functional import Promise

from nexo_django import conf, mcp, offer, permissions, registry, skills
from nexo_django.completion import LiteLLMCompletion, catalogue, offline
from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.mcp import Servers
from nexo_django.middleware import (
    DefaultCompactionPipeline,
    DefaultToolPipeline,
    MaxIterations,
    SessionLog,
    SystemPrompt,
    ToolResultLoop,
)
from nexo_django.permissions import Permissions
from nexo_django.pipeline import App, Env, Pipeline
from nexo_django.sandbox.base import Sandbox
from nexo_django.sandbox.choice import resolve
from nexo_django.tools import Tool, read_output

MAX_NAME = 100


@dataclass(frozen=True)
class Context:
    """What callable instructions are told."""

    agent: Agent
    agent_name: str
    instance_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Agent:
    """A declaration of an agent; subclasses set the attributes.

    `name` is the stable key of its chats (default: the class's name). `max_turns` is how
    many model calls one turn may make. `options` go to the model call (temperature, ...).
    Keywords of `Session.resume` come to the constructor and override the class for that
    session object only; nothing of them is stored.
    """

    name: ClassVar[str]
    abstract: ClassVar[bool] = False
    model: str | None = None
    instructions: str | Callable[..., str] = ""
    tools: Sequence[Any] = ()
    sandbox: Any = None
    permissions: Any = None
    skills: Sequence[str] = ()
    mcp: Mapping[str, Any] = {}
    mcp_allow: Sequence[str] = ()
    fetch_allow: Sequence[str] = ()
    max_turns: int = 25
    context_window: int | None = None
    options: Mapping[str, Any] = {}
    max_prompt_bytes: int = 1_000_000

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.abstract = bool(cls.__dict__.get("abstract", False))
        name = cls.__dict__.get("name", cls.__name__)
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
            raise ConfigurationError(
                f"{cls.__qualname__}.name is {brief(name)}; it must be 1 to {MAX_NAME} characters."
            )
        cls.name = name
        if "tools" in cls.__dict__:
            cls.tools = _listed(cls.tools)
        if not cls.abstract:
            registry.register(cls)

    def __init__(self, **overrides: Any) -> None:
        for key, value in overrides.items():
            if key not in OVERRIDES:
                raise TypeError(
                    f"{type(self).__name__} takes no argument {key!r}; it takes "
                    f"{', '.join(OVERRIDES)}. Define __init__ to take others."
                )
            setattr(self, key, _listed(value) if key == "tools" else value)

    @property
    def model_id(self) -> str:
        """The litellm id of the model in force."""
        model = self.model or conf.get("DEFAULT_MODEL")
        if not isinstance(model, str) or not model.strip():
            raise ConfigurationError(
                f"{type(self).__name__}.model is {brief(model)}; give a litellm id such as "
                f'"openai/gpt-4o-mini", or set NEXO["DEFAULT_MODEL"].'
            )
        return model

    def system_text(self, context: Context) -> str:
        """Give the instructions as text, calling them when they are callable."""
        declared = inspect.getattr_static(self, "instructions")
        if isinstance(declared, property):
            declared = self.instructions
        if not _is_text(declared):
            _refuse_uncallable(self, declared)
        text = declared if _is_text(declared) else _called(self, declared, context)
        if text is None or isinstance(text, Promise):
            # A lazy translation is said in the language that is active now.
            return "" if text is None else str(text)
        if not isinstance(text, str):
            raise ConfigurationError(
                f"{type(self).__name__}.instructions gave {brief(text)}; they must give text."
            )
        return text

    def completion(self) -> App:
        """Give the terminal app, which calls the model."""
        return LiteLLMCompletion(self.model_id, **self.options)

    def pipeline(self) -> Pipeline:
        """Give the stack of a turn; override to change it."""
        completion = self.completion()
        return (
            Pipeline()
            .use(SessionLog)
            .use(SystemPrompt, self.system_prompt)
            .use(ToolResultLoop)
            .use(MaxIterations, self.max_turns)
            .use(DefaultCompactionPipeline, window=self.context_window, summariser=completion)
            .use(DefaultToolPipeline, tools=self.offered(), late=self.mcp_tools)
            .run(completion)
        )

    def offered(self) -> list[Tool]:
        """Give the tools that the model is offered: those that the permissions can allow.

        They are the declared ones, what the sandbox, the skills and the like bring, and
        read_output. Without tools there is no output to read, and some models take no schemas
        at all.
        """
        granted = self.granted()
        offered = [
            tool for tool in self.declared() if granted.offers(tool) and tool.offered_to(self)
        ]
        if not offered or any(tool.name == read_output.name for tool in offered):
            return offered
        return [*offered, read_output]

    def mcp_tools(self, env: Env) -> list[Tool]:
        """Give the tools of the MCP servers, which are connected when a turn begins."""
        if not self.mcp:
            return []
        offered = {tool.name for tool in self.offered()}
        found = mcp.tools(self.mcp_servers(), self.mcp, self.granted(), offered, env)
        return found if not found or read_output.name in offered else [*found, read_output]

    def mcp_servers(self) -> Servers:
        """Give the MCP servers of this object, each connected when it is first used."""
        if "_servers" not in self.__dict__:
            # Of two threads that come first, one sets them for both.
            self.__dict__.setdefault("_servers", mcp.servers(self))
        held: Servers = self.__dict__["_servers"]
        return held

    def declared(self) -> list[Tool]:
        """Give every tool that the declaration brings, allowed or not."""
        return offer.declared(self)

    def granted(self) -> Permissions:
        """Give the permissions in force, as they are declared now."""
        value = conf.get("DEFAULT_PERMISSIONS") if self.permissions is None else self.permissions
        try:
            return permissions.declared(value, self.mcp_allow)
        except ConfigurationError as error:
            raise ConfigurationError(f"{type(self).__name__}.permissions: {error}") from None

    def system_prompt(self, env: Any) -> str:
        """Give the system text of a turn: the instructions, and what the skills are for."""
        return skills.prompted(self.system_text(env.metadata["context"]), self.skills)

    def check(self) -> None:
        """Raise for a declaration that can't work, before anything is written."""
        self.granted()
        if self.sandbox is not None or conf.get("DEFAULT_SANDBOX") != "virtual":
            self.opened().check()
        for key, (fits, must) in RULES.items():
            if not fits(value := getattr(self, key)):
                raise ConfigurationError(
                    f"{type(self).__name__}.{key} is {brief(value)}; it must be {must}."
                )
        _refuse_unlisted(type(self).__name__, self.tools)
        skills.check(type(self).__name__, self.skills)
        _check_hosts(type(self).__name__, self.fetch_allow)
        mcp.check(type(self).__name__, self.mcp)
        declared = inspect.getattr_static(self, "instructions")
        if not isinstance(declared, property) and not _is_text(declared):
            _refuse_uncallable(self, declared)
        if wrong := catalogue.problem(self.model_id):
            raise ConfigurationError(
                f"{type(self).__name__}.model is {brief(self.model_id)}; {wrong}."
            )
        offline.refuse_other(self.model_id)

    def opened(self) -> Sandbox:
        """Give the sandbox that the declaration names, made once for this object."""
        if "_sandbox" not in self.__dict__:
            self._sandbox = resolve(self.sandbox)
        return self._sandbox

    def close(self) -> None:
        """Give back what the agent holds; may be called twice."""
        sandbox = self.__dict__.get("_sandbox")
        # One that was given as an object is its giver's.
        if sandbox is not None and sandbox is not self.sandbox:
            sandbox.close()
        if (held := self.__dict__.get("_servers")) is not None:
            held.close()


def stack(agent: Agent) -> Pipeline:
    """Give an agent's pipeline, or raise ConfigurationError when it gave none."""
    made: Any = agent.pipeline()
    if not isinstance(made, Pipeline):
        raise ConfigurationError(
            f"{type(agent).__name__}.pipeline() returned {brief(made)}; return the Pipeline."
        )
    return made


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# What an attribute must be: one rule for the system check and for a prompt.
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_turns": (_is_count, "a whole number, at least 1"),
    "max_prompt_bytes": (_is_count, "a whole number of bytes, at least 1"),
    "context_window": (
        lambda value: value is None or _is_count(value),
        "a whole number of tokens, at least 1, or None",
    ),
    "options": (
        lambda value: isinstance(value, Mapping),
        'a dictionary, such as {"temperature": 0}',
    ),
}
OVERRIDES = (
    "model",
    "instructions",
    "tools",
    "max_turns",
    "context_window",
    "options",
    "sandbox",
    "permissions",
    "skills",
    "mcp",
    "mcp_allow",
    "fetch_allow",
)


def _called(agent: Agent, declared: Any, context: Context) -> Any:
    """Call instructions that are a method `(self, context)` or a function `(context)`."""
    if isinstance(declared, staticmethod | classmethod):
        return declared.__get__(agent, type(agent))(context)
    if "instructions" not in vars(agent) and inspect.isfunction(declared):
        needed = [
            p for p in inspect.signature(declared).parameters.values() if p.default is p.empty
        ]
        if len(needed) > 1:
            return declared(agent, context)
    return declared(context)


def _refuse_uncallable(agent: Agent, declared: Any) -> None:
    if not callable(declared) and not isinstance(declared, classmethod):
        raise ConfigurationError(
            f"{type(agent).__name__}.instructions is {brief(declared)}; give text or a callable."
        )


def _is_text(declared: Any) -> bool:
    return declared is None or isinstance(declared, str | Promise)


def _refuse_unlisted(agent: str, tools: Any) -> None:
    if isinstance(tools, str | bytes | Mapping):
        kind = {str: "a string", bytes: "bytes"}.get(type(tools), "a dictionary")
        raise ConfigurationError(f"{agent}.tools is {kind}; give a list of tools.")
    if tools is None or isinstance(tools, Iterable):
        return
    name = getattr(tools, "name", None) or getattr(tools, "__name__", None)
    if name is None or not callable(tools):
        raise ConfigurationError(f"{agent}.tools is {brief(tools)}; give a list of tools.")
    raise ConfigurationError(f"{agent}.tools is the tool {name!r}; put it in a list: [{name}].")


def _check_hosts(agent: str, allow: Any) -> None:
    if allow:
        # Not at the top: it brings what speaks HTTP and TLS.
        from nexo_django import fetch

        fetch.check(agent, allow)


def _listed(tools: Any) -> Any:
    """Keep tools that come from a generator for more than one turn."""
    return tuple(tools) if isinstance(tools, Iterator) else tools
