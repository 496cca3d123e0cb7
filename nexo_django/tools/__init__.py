"""Tools: functions that a model may call, with a schema and results it can read."""

from __future__ import annotations

from nexo_django.tools.base import Tool, tool
from nexo_django.tools.convert import as_tool, resolve
from nexo_django.tools.read_output import read_output
from nexo_django.tools.results import ToolResult

__all__ = ["Tool", "ToolResult", "as_tool", "read_output", "resolve", "tool"]
