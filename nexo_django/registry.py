"""Which agents there are, by their stable name; filled as their classes are made."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from nexo_django.exceptions import AgentNotRegistered

if TYPE_CHECKING:
    from nexo_django.agent import Agent

_agents: dict[str, dict[str, type[Agent]]] = {}


def register(agent: type[Agent]) -> None:
    """Make an agent known by its name; a class made again (a reload) replaces itself."""
    _agents.setdefault(agent.name, {})[f"{agent.__module__}.{agent.__qualname__}"] = agent


def agents() -> dict[str, type[Agent]]:
    """Give every registered agent by name; of two with one name, the later one."""
    return {name: list(found.values())[-1] for name, found in sorted(_agents.items())}


def duplicates() -> dict[str, list[str]]:
    """Give the names that several classes claim, with the classes' paths."""
    return {name: sorted(found) for name, found in sorted(_agents.items()) if len(found) > 1}


def get(name: str) -> type[Agent]:
    """Give the agent of that name, or raise AgentNotRegistered with the names there are."""
    known = agents()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    there = ", ".join(known) or "none; an app's agents.py is imported at start"
    raise AgentNotRegistered(f"No agent is registered as {name!r}.{meant} Registered: {there}.")
