"""The tool that searches the files of the agent's sandbox, for a time that no pattern can exceed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import regex

from nexo_django import permissions
from nexo_django.exceptions import ToolError
from nexo_django.pipeline import Env
from nexo_django.sandbox.base import Sandbox
from nexo_django.sandbox.globs import matcher
from nexo_django.tools.base import tool
from nexo_django.tools.seen import sandbox_of

MAX_PATTERN, MAX_MATCHES = 500, 100
LINE_CHARS, SHOWN_CHARS = 10_000, 500
SECONDS, MAX_BYTES = 5.0, 50_000_000
# It takes memory as fast as time.
_RECURSION = re.compile(r"\(\?(?:R|[-+]?\d|&|P>)")


@tool(capability=permissions.READ, idempotent=True)
def grep(
    env: Env, pattern: str, path: str = "", glob: str | None = None, ignore_case: bool = False
) -> str:
    """Search the text files of the workspace for a regular expression, line by line.

    Args:
        pattern: The regular expression.
        path: Only in this file or folder.
        glob: Only in files whose paths match this, such as **/*.py.
        ignore_case: Whether capitals count as small letters.
    """
    compiled, until = _compiled(pattern, ignore_case), time.monotonic() + SECONDS
    sandbox, found = sandbox_of(env), list[str]()
    try:
        for line in _lines(sandbox, sandbox.inside(path), glob, compiled, until):
            if len(found) == MAX_MATCHES:
                found.append(f"[Only the first {MAX_MATCHES} lines; search for less.]")
                break
            found.append(line)
    except TimeoutError:
        found.append(f"[Stopped after {SECONDS:g} seconds; give a simpler pattern or a path.]")
    except MemoryError:
        raise ToolError("The pattern takes too much memory; give a simpler one.") from None
    return "\n".join(found) or "No line matches."


def _compiled(pattern: str, ignore_case: bool) -> Any:
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern must be 1 to {MAX_PATTERN} characters long.")
    if _RECURSION.search(pattern):
        raise ToolError("The pattern calls itself, which a search here can't do.")
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, OverflowError, RecursionError, ValueError, IndexError) as error:
        raise ToolError(f"The pattern is no regular expression: {error}.") from None


def _lines(
    sandbox: Sandbox, path: str, glob: str | None, compiled: Any, until: float
) -> Iterator[str]:
    fits = matcher(glob) if glob else None
    read = 0
    for entry in sandbox.entries():
        if path and entry.path != path and not entry.path.startswith(f"{path}/"):
            continue
        # As in a shell, a pattern without a folder is for names in any of them.
        name = entry.path if glob and "/" in glob else entry.path.rpartition("/")[2]
        if fits is not None and not fits(name):
            continue
        read += entry.size
        if read > MAX_BYTES or time.monotonic() > until:
            raise TimeoutError
        yield from _matches(sandbox, entry.path, compiled, until)


def _matches(sandbox: Sandbox, path: str, compiled: Any, until: float) -> Iterator[str]:
    try:
        data = sandbox.read(path)
    except ToolError:
        # Too large, or gone meanwhile.
        return
    if data is None or b"\x00" in data[:8192]:
        return
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # It raises TimeoutError; without the interpreter's lock other turns go on meanwhile.
        if compiled.search(line[:LINE_CHARS], timeout=left, concurrent=True):
            yield f"{path}:{number}:{line[:SHOWN_CHARS].rstrip()}"
