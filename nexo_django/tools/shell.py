"""The tool that runs commands in the agent's sandbox."""

from __future__ import annotations

import time

from nexo_django import permissions
from nexo_django.exceptions import ToolError
from nexo_django.pipeline import Env
from nexo_django.sandbox.base import SECONDS, ShellResult
from nexo_django.tools.base import tool
from nexo_django.tools.results import ToolResult
from nexo_django.tools.seen import sandbox_of
from nexo_django.truncation import TAIL

_WHY = {
    "memory": "it took more memory than it may",
    "disk": "the workspace took more room than it may",
    "processes": "it started more processes than it may",
}


@tool(capability=permissions.SHELL)
def shell(env: Env, command: str, timeout: float = SECONDS) -> ToolResult:
    """Run a command in the workspace; what it leaves running is ended.

    Args:
        command: A line for the shell.
        timeout: After how many seconds the command is ended.
    """
    sandbox = sandbox_of(env)
    if not sandbox.has_shell:
        raise ToolError(f"The sandbox {sandbox.name!r} has no shell.")
    if env.deadline is not None:
        timeout = min(timeout, max(env.deadline - time.monotonic(), 0.1))
    ended = sandbox.run(command, timeout, env.checkpoint)
    # The end says how a command went.
    return ToolResult(_text(ended, timeout), is_error=bool(ended.stopped), mode=TAIL)


def _text(ended: ShellResult, timeout: float) -> str:
    parts = []
    if ended.omitted:
        parts.append(f"[The first {ended.omitted:,} bytes of the output were not kept.]")
    if ended.stdout:
        parts.append(ended.stdout.rstrip("\n"))
    if ended.stderr:
        parts.append(f"STDERR:\n{ended.stderr.rstrip(chr(10))}")
    if ended.stopped == "timeout":
        parts.append(f"[Ended after {timeout:g} seconds, which is its timeout.]")
    elif ended.stopped:
        parts.append(f"[Ended: {_WHY.get(ended.stopped, ended.stopped)}.]")
    elif ended.code:
        parts.append(f"[exit code: {ended.code}]")
    return "\n".join(parts) or "(no output)"
