"""Tools, resources and prompts of MCP servers, through the official package.

That package is imported when the first server is connected: an agent without servers needs
none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nexo_django.exceptions import ToolDenied
from nexo_django.mcp import config, results
from nexo_django.mcp.servers import PROMPT, Servers
from nexo_django.permissions import Permissions, Verdict
from nexo_django.pipeline import Env
from nexo_django.tools import Tool

if TYPE_CHECKING:
    from nexo_django.agent import Agent

__all__ = ["Servers", "check", "prompt", "servers", "tools"]


def check(agent: str, given: Any) -> None:
    """Raise ConfigurationError for servers that are not declared as they must be."""
    config.servers(agent, given)


def servers(agent: Agent) -> Servers:
    """Give an agent's servers, none of them connected."""
    return Servers(config.servers(type(agent).__name__, agent.mcp))


def tools(
    held: Servers, names: Iterable[str], granted: Permissions, taken: Iterable[str], env: Env
) -> list[Tool]:
    """Give the tools of an agent's servers that its permissions can allow.

    A server of whose tools none can ever be allowed is not even connected; outside a session's
    turn, none is.
    """
    wanted = [name for name in names if granted.offers_server(name)]
    in_turn = env.metadata.get("context") is not None
    found = held.tools(wanted, taken, env) if in_turn else held.known(wanted, taken)
    return [tool for tool in found if granted.offers(tool)]


def prompt(held: Servers, granted: Permissions, server: str, name: str, given: Any) -> str:
    """Give a server's prompt as text, or raise ToolDenied."""
    gate = Tool(prompt, name=PROMPT, parameters={"type": "object"})
    gate.mcp = f"{server}/{PROMPT}"
    if granted.judge(gate, {"name": name, "arguments": given}) is not Verdict.ALLOW:
        raise ToolDenied(f"The prompts of {server!r} are not allowed; {gate.mcp!r} would be.")
    texts = {key: str(value) for key, value in given.items()}
    found = held.request(server, lambda client: client.get_prompt(name, texts))
    return results.of_prompt(found)
