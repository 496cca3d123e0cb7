"""The tools that a declared sandbox brings."""

from __future__ import annotations

from typing import Any

from nexo_django.tools.base import Tool
from nexo_django.tools.files import edit_file, glob_files, read_file, remove_file, write_file
from nexo_django.tools.grep import grep
from nexo_django.tools.shell import shell

FILE_TOOLS: list[Tool] = [read_file, write_file, edit_file, remove_file, glob_files, grep]


def tools(agent: Any) -> list[Tool]:
    """Give the file tools, and the shell where the agent's sandbox has one."""
    return [*FILE_TOOLS, *([shell] if agent.opened().has_shell else [])]
