"""Which tools an agent's declaration brings: those it lists, and those of what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nexo_django.permissions import READ_ONLY, Permissions
from nexo_django.tools import Tool, resolve

if TYPE_CHECKING:
    from nexo_django.agent import Agent

# What an attribute brings when it is declared: "module:function", which takes the agent.
SOURCES: dict[str, str] = {
    "sandbox": "nexo_django.tools.workspace:tools",
    "skills": "nexo_django.skills:tools",
    "fetch_allow": "nexo_django.fetch:tools",
}


def declared(agent: Agent) -> list[Tool]:
    """Give every tool of an agent; one that it lists goes before another of the same name."""
    listed = resolve(agent.tools)
    taken = {tool.name for tool in listed}
    return [*listed, *(tool for tool in resolve(_brought(agent)) if tool.name not in taken)]


def _brought(agent: Agent) -> Iterator[Any]:
    for attribute, source in SOURCES.items():
        if _is_declared(agent, attribute):
            module, _, function = source.partition(":")
            yield from getattr(import_module(module), function)(agent)


def _is_declared(agent: Agent, attribute: str) -> bool:
    """Whether the agent says so itself: an agent that says nothing has no tools to pay for."""
    if attribute == "sandbox":
        return agent.sandbox is not None or _acts(agent.permissions)
    return bool(getattr(agent, attribute))


def _acts(permissions: Any) -> bool:
    mode = permissions.mode if isinstance(permissions, Permissions) else permissions
    return mode not in (None, READ_ONLY)
