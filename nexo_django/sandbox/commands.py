"""What a command may be, may take and may see, the same in every sandbox with a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from nexo_django.exceptions import ToolError
from nexo_django.sandbox.base import MAX_SECONDS
from nexo_django.sandbox.process import PATH

# What of the site's environment a command sees; everything else may be a secret.
PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


def shell() -> str:
    """Give the shell that commands are run by."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def passed(more: Iterable[str] = ()) -> dict[str, str]:
    """Give what a command may see of the site's environment."""
    given = {name: os.environ[name] for name in (*PASSED, *more) if name in os.environ}
    return {"PATH": PATH, **given}


def runnable(command: Any) -> str:
    """Give a command that the system takes, or raise ToolError."""
    if not isinstance(command, str) or not command.strip():
        raise ToolError("The command is empty.")
    if "\x00" in command:
        raise ToolError("The command holds a NUL character.")
    text = command.encode("utf-8", "replace").decode()
    # The system takes 128 KiB for one argument.
    if len(text.encode()) > 100_000:
        raise ToolError("The command is longer than 100000 bytes; write it to a file and run that.")
    return text


def seconds(timeout: float) -> float:
    """Give a time that a command may take, or raise ToolError."""
    if not 0 < timeout <= MAX_SECONDS:
        raise ToolError(f"The timeout must be more than 0 and at most {MAX_SECONDS:g} seconds.")
    return float(timeout)
