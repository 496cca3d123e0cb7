"""What a docstring says of a function and of its parameters (Google, NumPy or Sphinx style)."""

from __future__ import annotations

import inspect
import re
from itertools import pairwise

_SECTION = re.compile(
    r"(?i)^(args|arguments|parameters|params|returns?|yields?|raises|examples?|notes?):?$"
)
_PARAMETERS = re.compile(r"(?i)^(args|arguments|parameters|params):?$")
_SPHINX = re.compile(r"^:param\s+(?:[^:]+\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")


def parse(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Give the description and, by name, what is said of the parameters."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    starts = [i for i, line in enumerate(lines) if _begins_section(lines, i)]
    end = min(starts, default=len(lines))
    parameters: dict[str, str] = {}
    for start, stop in pairwise([*starts, len(lines)]):
        if _SPHINX.match(lines[start]):
            parameters.update(_entries(lines[start:stop], _SPHINX))
        elif _PARAMETERS.match(lines[start].strip()):
            parameters.update(_parameters(lines[start + 1 : stop]))
    return "\n".join(lines[:end]).strip(), parameters


def _begins_section(lines: list[str], index: int) -> bool:
    line = lines[index]
    if line.startswith(":"):
        return bool(re.match(r"^:\w+[^:]*:", line))
    if line != line.lstrip() or not _SECTION.match(line):
        return False
    # A word alone on a line is a heading only with its colon, or underlined.
    return line.endswith(":") or _underlined(lines, index)


def _underlined(lines: list[str], index: int) -> bool:
    return index + 1 < len(lines) and bool(re.match(r"^-{3,}$", lines[index + 1].strip()))


def _parameters(lines: list[str]) -> dict[str, str]:
    if lines and re.match(r"^-{3,}$", lines[0].strip()):
        return _entries(lines[1:], _NUMPY)
    return _entries(inspect.cleandoc("\n" + "\n".join(lines)).splitlines(), _GOOGLE)


def _entries(lines: list[str], head: re.Pattern[str]) -> dict[str, str]:
    """Read entries whose first line is not indented, and whose further lines are."""
    found: dict[str, list[str]] = {}
    name = None
    for line in lines:
        match = None if line.startswith((" ", "\t")) else head.match(line)
        if match:
            name = match[1]
            found[name] = [match[2]] if match.re.groups > 1 else []
        elif name is not None:
            found[name].append(line.strip())
    return {key: " ".join(part for part in text if part) for key, text in found.items()}
