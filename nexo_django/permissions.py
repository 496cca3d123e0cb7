"""Permissions: what an agent's tools may do, judged for each call and never from stored rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from nexo_django.exceptions import ConfigurationError, brief, is_abort

logger = logging.getLogger(__name__)

READ, GLOB, WRITE, SHELL, FETCH, SEARCH = CAPABILITIES = (
    "read",
    "glob",
    "write",
    "shell",
    "fetch",
    "search",
)
READ_ONLY, AUTO, ASK, APPROVE = MODES = ("read_only", "auto", "ask", "approve")
# What `on_ask` and an approval name as the capability of a tool of an MCP server.
MCP = "mcp"


class Verdict(IntEnum):
    """What is to become of a call; the smaller of two is what both allow."""

    DENY = 0
    DECIDE = 1
    ALLOW = 2


class Gated(Protocol):
    """What the gate looks at in a tool."""

    name: str
    capability: str | None
    mcp: str | None


Ask = Callable[[str, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Permissions:
    """What the tools of an agent may do.

    `mode` is for what `allow` does not name: "read_only" refuses it, "auto" allows it, "ask"
    has `on_ask(capability, detail)` decide now and in the tool's turn, "approve" stops the
    turn until somebody decides on that one call. `mcp_allow` names tools of MCP servers, as
    "server/tool" or "server/*", that are allowed in every mode. With `ask_when(capability, detail)` only
    calls for which it is true are asked for. `detail` is {"tool": name, "arguments": {...}}.
    """

    mode: str = READ_ONLY
    allow: Iterable[str] = (READ, GLOB)
    mcp_allow: Iterable[str] = ()
    on_ask: Ask | None = None
    ask_when: Ask | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigurationError(
                f"There is no permissions mode {brief(self.mode)}; the modes are "
                f"{', '.join(MODES)}."
            )
        for name in ("allow", "mcp_allow"):
            # Frozen: assignment goes around the guard while the value is made.
            object.__setattr__(self, name, names(getattr(self, name), f"Permissions.{name}"))
        for capability in self.allow:
            known(capability, "Permissions.allow")
        for name in ("on_ask", "ask_when"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigurationError(
                    f"Permissions.{name} is {brief(value)}; give a function (capability, detail)."
                )

    def offers(self, tool: Gated) -> bool:
        """Whether a call of the tool can ever be allowed."""
        if self._passes(tool):
            return True
        return self.mode in (AUTO, APPROVE) or (self.mode == ASK and self.on_ask is not None)

    def offers_server(self, name: str) -> bool:
        """Whether a call of any tool of an MCP server can ever be allowed."""
        if self.mode in (AUTO, APPROVE) or (self.mode == ASK and self.on_ask is not None):
            return True
        return any(allowed.startswith(f"{name}/") for allowed in self.mcp_allow)

    def judge(self, tool: Gated, arguments: Mapping[str, Any]) -> Verdict:
        """Say what is to become of a call; in mode "ask" the host decides before this returns."""
        if self._passes(tool) or self.mode == AUTO:
            return Verdict.ALLOW
        if not self.offers(tool):
            return Verdict.DENY
        capability = capability_of(tool) or ""
        detail = {"tool": tool.name, "arguments": dict(arguments)}
        if self.ask_when is not None and not _asked(self.ask_when, capability, detail, failed=True):
            return Verdict.ALLOW
        if self.mode == APPROVE:
            return Verdict.DECIDE
        assert self.on_ask is not None
        allowed = _asked(self.on_ask, capability, detail, failed=False)
        return Verdict.ALLOW if allowed else Verdict.DENY

    def _passes(self, tool: Gated) -> bool:
        if tool.mcp is not None:
            server = tool.mcp.partition("/")[0]
            return tool.mcp in self.mcp_allow or f"{server}/*" in self.mcp_allow
        # A tool without a capability is the host's own code.
        return tool.capability is None or tool.capability in self.allow


def declared(value: Any, mcp_allow: Iterable[str] = ()) -> Permissions:
    """Give what an agent declared, a mode or Permissions, with its `mcp_allow` added."""
    made = value if isinstance(value, Permissions) else Permissions(value)
    more = names(mcp_allow, "mcp_allow")
    if not more:
        return made
    both = (*made.mcp_allow, *more)
    return Permissions(made.mode, made.allow, both, made.on_ask, made.ask_when)


def capability_of(tool: Gated) -> str | None:
    """Give what a call of the tool is gated by, None for the host's own code."""
    return MCP if tool.mcp is not None else tool.capability


def known(capability: Any, where: str) -> None:
    """Raise ConfigurationError for a capability that there is none of."""
    if capability not in CAPABILITIES:
        raise ConfigurationError(
            f"{where} names the capability {brief(capability)}; the capabilities are "
            f"{', '.join(CAPABILITIES)}."
        )


def names(value: Any, where: str) -> tuple[str, ...]:
    """Give a list of names as a tuple; a single text would be read letter by letter."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{where} is {brief(value)}; give a list of names.")
    given = tuple(value)
    for name in given:
        if not isinstance(name, str):
            raise ConfigurationError(f"{where} holds {brief(name)}; give a list of names.")
    return given


def _asked(ask: Ask, capability: str, detail: Mapping[str, Any], *, failed: bool) -> bool:
    """Give what the host's function says, or `failed` when it raises."""
    try:
        return bool(ask(capability, detail))
    except Exception as error:
        if is_abort(error):
            raise
        logger.exception("capability=%s tool=%s could not be asked for", capability, detail["tool"])
        return failed
