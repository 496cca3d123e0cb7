"""The tool that runs commands in the agent's sandbox."""

from __future__ import annotations

import time

from nexo_django import conf, permissions
from nexo_django.exceptions import ToolError
from nexo_django.messages import ToolCall
from nexo_django.pipeline import Env
from nexo_django.sandbox.base import SECONDS, ShellResult
from nexo_django.tools.base import tool
from nexo_django.tools.results import ToolResult
from nexo_django.tools.seen import sandbox_of
from nexo_django.truncation import TAIL, truncate

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
    return _capped(env, _text(ended, timeout), failed=bool(ended.stopped))


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


def _capped(env: Env, text: str, *, failed: bool) -> ToolResult:
    """Cut the text to its end, which says how a command went, and keep the whole."""
    caps = {
        "max_lines": conf.get("TRUNCATE_LINES"),
        "max_bytes": conf.get("TRUNCATE_BYTES"),
        "max_line_chars": conf.get("TRUNCATE_LINE_CHARS"),
        "mode": TAIL,
    }
    capped = truncate(text, **caps)
    if not capped.truncated:
        return ToolResult(text, is_error=failed)
    keep = env.metadata.get("keep_output")
    output_id = None if keep is None else keep(text, ToolCall("", "shell"))
    capped = truncate(text, **caps, output_id=output_id)
    return ToolResult(capped.text, is_error=failed, truncated=True, output_id=output_id)
