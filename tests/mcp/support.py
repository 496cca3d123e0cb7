"""Servers for the tests: those that tests/peers/install brings, and a faulty one of our own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.completion.peers import HOME

NPM, PYPI = HOME / "node_modules" / ".bin", HOME / "venv-mcp" / "bin"
EVERYTHING = NPM / "mcp-server-everything"
FILESYSTEM = NPM / "mcp-server-filesystem"
MEMORY = NPM / "mcp-server-memory"
TIME, FETCH = PYPI / "mcp-server-time", PYPI / "mcp-server-fetch"
FAULTY = Path(__file__).with_name("faulty.py")


def faulty(*arguments: str, **declared: Any) -> dict[str, Any]:
    """Declare the faulty server."""
    return {"command": sys.executable, "args": [str(FAULTY), *arguments], **declared}


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for something that another process or thread does."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return found


def gone(pid: int) -> bool:
    """Whether a process does not run; one whose parent died may never be reaped in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
