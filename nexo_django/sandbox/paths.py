"""What a path that a model gives may be: inside the workspace, whatever it is written like."""

from __future__ import annotations

import re

from nexo_django.exceptions import ToolError, brief

# What a command in a sandbox sees its workspace as.
MOUNT = "/workspace"
MAX_PATH, MAX_NAME = 4096, 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def inside(path: str, *, roots: tuple[str, ...] = (MOUNT,)) -> str:
    """Give a path from the workspace on, without `.` and `..`; "" is the workspace itself.

    An absolute path is taken when it begins with one of `roots`. Raises ToolError for one
    that leads out, or that no file could have.
    """
    if not isinstance(path, str):
        raise ToolError("A path must be a text.")
    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH:
        raise ToolError(f"The path is longer than {MAX_PATH} bytes.")
    if _CONTROL.search(path):
        raise ToolError(f"The path {brief(path)} holds control characters.")
    if "\\" in path:
        raise ToolError(f"The path {brief(path)} has a backslash; write / between folders.")
    kept: list[str] = []
    for part in _relative(path, roots).split("/"):
        if part == "..":
            if not kept:
                raise ToolError(f"The path {brief(path)} leads out of the workspace.")
            kept.pop()
        elif part not in ("", "."):
            kept.append(_name(part))
    return "/".join(kept)


def file_inside(path: str, *, roots: tuple[str, ...] = (MOUNT,)) -> str:
    """Give the path of a file, which the workspace itself is not; see inside()."""
    found = inside(path, roots=roots)
    if not found:
        raise ToolError(f"The path {brief(path)} is the workspace itself; name a file in it.")
    return found


def _relative(path: str, roots: tuple[str, ...]) -> str:
    if not path.startswith("/"):
        return path
    for root in roots:
        if path == root or path.startswith(f"{root.rstrip('/')}/"):
            return path[len(root) :]
    raise ToolError(
        f"The path {brief(path)} is absolute; give one from the workspace on, such as notes/a.txt."
    )


def _name(part: str) -> str:
    if len(part.encode()) > MAX_NAME:
        raise ToolError(f"The name {brief(part)} is longer than {MAX_NAME} bytes.")
    return part
