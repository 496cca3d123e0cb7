"""The gate before a tool: what a call waits for, by the permissions as they are now."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nexo_django import events
from nexo_django.decisions import (
    ANSWERED,
    APPROVED,
    AWAITING_ANSWER,
    AWAITING_APPROVAL,
    DENIED,
    Decision,
    denial,
)
from nexo_django.exceptions import InvalidArguments
from nexo_django.permissions import Verdict, capability_of
from nexo_django.sanitize import clean_json
from nexo_django.tools import ToolResult

if TYPE_CHECKING:
    from nexo_django.middleware.tools import ToolRun
    from nexo_django.pipeline import Env
    from nexo_django.tools import Tool

logger = logging.getLogger(__name__)

NOBODY = "Nobody can decide on this call here: the pipeline keeps no session. It was not run."


def judge(run: ToolRun, tool: Tool | None, made: Decision | None) -> None:
    """Settle what becomes of a call: it may run, is denied, has its result, or waits.

    A decision never allows what the permissions would not let anybody decide: a tool that is
    no longer offered stays out, whatever was approved when it was.
    """
    run.awaits = None
    if run.result is not None or run.denied:
        return
    if made is not None and made.verb == DENIED:
        run.denied = denial(made)
    elif tool is not None and tool.asks_user:
        _question(run, made)
    elif tool is not None:
        _capability(run, tool, made)
    if run.awaits is not None and tool is not None and (wrong := _unfit(run, tool)):
        run.awaits, run.result = None, ToolResult(wrong, is_error=True)
    if run.awaits is not None and getattr(run.env.turn, "hold", None) is None:
        run.awaits, run.denied = None, NOBODY


def offered(env: Env, tools: list[Tool]) -> list[Tool]:
    """Give the tools whose calls the permissions can allow."""
    if env.agent is None:
        return tools
    granted = env.agent.granted()
    return [tool for tool in tools if granted.offers(tool)]


def hold(env: Env, runs: list[ToolRun], tools: dict[str, Tool], told: set[str]) -> None:
    """Commit that calls wait, and tell of those that did not before."""
    env.turn.hold({run.call.id: run.awaits for run in runs})
    for run in runs:
        if run.call.id in told:
            continue
        told.add(run.call.id)
        if run.awaits == AWAITING_ANSWER:
            asked = {key: run.arguments.get(key) for key in ("text", "options")}
            env.emit(events.QUESTION, clean_json({"id": run.call.id, **asked}))
        else:
            about: dict[str, Any] = {
                "id": run.call.id,
                "name": run.name,
                "arguments": run.call.arguments,
                "capability": capability_of(tools[run.name]),
            }
            env.emit(events.APPROVAL_REQUESTED, clean_json(about))


def withheld(env: Env, name: str) -> bool:
    """Whether the agent declares such a tool, which its permissions keep from being offered."""
    return env.agent is not None and any(tool.name == name for tool in env.agent.declared())


def not_allowed(name: str) -> str:
    """Say that the permissions refuse a tool."""
    return f"The tool {name} is not allowed by this agent's permissions; it was not run."


def _question(run: ToolRun, made: Decision | None) -> None:
    if made is not None and made.verb == ANSWERED:
        run.result = made.text
    else:
        run.awaits = AWAITING_ANSWER


def _capability(run: ToolRun, tool: Tool, made: Decision | None) -> None:
    agent = run.env.agent
    # In a bare pipeline the host gave each tool itself.
    verdict = Verdict.ALLOW if agent is None else agent.granted().judge(tool, run.arguments)
    if verdict is Verdict.DENY:
        run.denied = not_allowed(run.name)
    elif verdict is Verdict.DECIDE and (made is None or made.verb != APPROVED):
        run.awaits = AWAITING_APPROVAL


def _unfit(run: ToolRun, tool: Tool) -> str | None:
    """Say why the call could not run at all: nobody is asked about such a one."""
    if not run.arguments and run.call.raw_arguments is not None:
        return f"The arguments of {run.name} were not a JSON object; send one."
    try:
        tool.bound(run.arguments, run.env)
    except InvalidArguments as error:
        return str(error)
    except Exception as error:
        # It is the tool's own, and a result once the call runs.
        logger.warning("tool=%s could not be checked: %s", run.name, type(error).__name__)
    return None
