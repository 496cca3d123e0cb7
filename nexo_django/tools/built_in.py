"""The built-in tools by their names, each imported when an agent is offered it."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.tools.base import Tool

# Where each is: "module:attribute".
BUILT_IN: dict[str, str] = {
    "edit_file": "nexo_django.tools.files:edit_file",
    "fetch": "nexo_django.fetch:fetch",
    "glob": "nexo_django.tools.files:glob_files",
    "grep": "nexo_django.tools.grep:grep",
    "question": "nexo_django.tools.question:question",
    "read_file": "nexo_django.tools.files:read_file",
    "read_output": "nexo_django.tools.read_output:read_output",
    "remove_file": "nexo_django.tools.files:remove_file",
    "shell": "nexo_django.tools.shell:shell",
    "skill": "nexo_django.skills:skill",
    "todo_read": "nexo_django.tools.todo:todo_read",
    "todo_write": "nexo_django.tools.todo:todo_write",
    "web_search": "nexo_django.tools.web_search:web_search",
    "write_file": "nexo_django.tools.files:write_file",
}


def built_in(name: str) -> Tool:
    """Give the built-in tool of that name, or raise ConfigurationError."""
    if name not in BUILT_IN:
        near = get_close_matches(name, BUILT_IN, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"They are {', '.join(sorted(BUILT_IN))}."
        raise ConfigurationError(f"There is no built-in tool {brief(name)}. {hint}")
    module, _, attribute = BUILT_IN[name].partition(":")
    found: Tool = getattr(import_module(module), attribute)
    return found
