"""Shell patterns over paths, in time that no pattern can make more than their product."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache

from nexo_django.exceptions import ToolError

MAX_PATTERN = 1000
_ANY = "**"


def matcher(pattern: str) -> Callable[[str], bool]:
    """Give what tells whether a path matches: `*`, `?` and `[...]` in a name, `**` for folders."""
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"The pattern is longer than {MAX_PATTERN} characters.")
    parts: list[str] = []
    for part in pattern.split("/"):
        # Two of them in a row match what one does.
        if part not in ("", ".") and not (part == _ANY and parts[-1:] == [_ANY]):
            parts.append(part)
    if ".." in parts:
        raise ToolError("The pattern leads out of the workspace; leave out the `..`.")
    steps = [None if part == _ANY else _compiled(part) for part in parts]
    return lambda path: _matches(steps, path.split("/"))


def _matches(steps: list[re.Pattern[str] | None], names: list[str]) -> bool:
    """Follow every way through the pattern at once: `at` are the steps that may come next."""
    at = _skipped({0}, steps)
    for name in names:
        after: set[int] = set()
        for index in at:
            if index == len(steps):
                continue
            step = steps[index]
            if step is None:
                after.add(index)
            elif step.match(name):
                after.add(index + 1)
        at = _skipped(after, steps)
        if not at:
            return False
    return len(steps) in at


def _skipped(at: set[int], steps: list[re.Pattern[str] | None]) -> set[int]:
    """Add the steps after each `**`, which matches no folder as well."""
    return at | {i + 1 for i in at if i < len(steps) and steps[i] is None}


@lru_cache(maxsize=256)
def _compiled(part: str) -> re.Pattern[str]:
    try:
        # fnmatch makes each star give up nothing it took, so that none is tried again.
        return re.compile(fnmatch.translate(part))
    except re.error as error:
        raise ToolError(f"The pattern has a part that means nothing: {error}.") from None
