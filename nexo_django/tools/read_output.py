"""The tool that reads on in an output that was too long to show whole."""

from __future__ import annotations

from nexo_django import conf
from nexo_django.exceptions import ToolError, brief
from nexo_django.pipeline import Env
from nexo_django.tools.base import tool
from nexo_django.tools.results import ToolResult
from nexo_django.truncation import MAX_LINES, page


@tool(idempotent=True)
def read_output(
    env: Env, id: str, offset: int = 0, limit: int = MAX_LINES, grep: str | None = None
) -> ToolResult:
    """Read a tool's output that was cut or is no longer shown, page by page.

    Args:
        id: The id that the note in place of the output names.
        offset: How many lines to skip.
        limit: How many lines to give at most.
        grep: Give only lines that contain this text, each with its offset.
    """
    turn = env.turn
    text = None if turn is None else turn.output(id)
    if text is None:
        raise ToolError(
            f"There is no output {brief(id)} in this session, or it has expired; "
            f"call the tool that gave it again."
        )
    part = page(
        text,
        offset,
        limit,
        grep,
        max_bytes=conf.get("TRUNCATE_BYTES"),
        max_line_chars=conf.get("TRUNCATE_LINE_CHARS"),
    )
    # Within the caps already, and cut again it could not be put together.
    return ToolResult(part.shown(id), truncated=True, output_id=id)
