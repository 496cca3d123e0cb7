"""The tools that read and change the files of the agent's sandbox."""

from __future__ import annotations

from difflib import get_close_matches

from nexo_django import conf, permissions
from nexo_django.exceptions import ToolError, brief
from nexo_django.messages import ToolCall
from nexo_django.pipeline import Env
from nexo_django.sandbox.base import Sandbox
from nexo_django.sandbox.files import digest
from nexo_django.sandbox.globs import matcher
from nexo_django.tools.base import tool
from nexo_django.tools.results import ToolResult
from nexo_django.tools.seen import note, sandbox_of, seen
from nexo_django.truncation import page

MAX_FOUND = 1000


@tool(capability=permissions.READ, idempotent=True)
def read_file(env: Env, path: str, offset: int = 1, limit: int = 2000) -> ToolResult:
    """Read a text file of the workspace, or list a folder.

    Args:
        path: The file, from the workspace on.
        offset: The number of the first line to give.
        limit: How many lines to give at most.
    """
    sandbox = sandbox_of(env)
    data = _read(sandbox, path) if path.strip("/.") else None
    if data is None:
        return ToolResult(_folder(sandbox, path))
    text = _text(data)
    note(env, sandbox.inside(path), digest(data))
    if text is None:
        return ToolResult(f"{brief(path)} is no text: {len(data)} bytes.")
    return _page(text, max(1, offset), max(1, limit))


@tool(capability=permissions.WRITE)
def write_file(env: Env, path: str, content: str) -> str:
    """Write a whole file; one that is there must have been read before, as it is now.

    Args:
        path: The file, from the workspace on; folders on the way are made.
        content: What the file is to hold.
    """
    sandbox, data = sandbox_of(env), content.encode("utf-8", "replace")
    with sandbox.lock:
        old = sandbox.read(path)
        if old is not None and old != data:
            _refuse_unseen(env, sandbox, path, old)
        sandbox.write(path, data)
        note(env, sandbox.inside(path), digest(data))
    return f"Wrote {len(data)} bytes to {path}.{_kept(env, 'write_file', old, data)}"


@tool(capability=permissions.WRITE)
def edit_file(env: Env, path: str, old: str, new: str, replace_all: bool = False) -> str:
    """Replace a passage of a text file.

    Args:
        path: The file, from the workspace on.
        old: The passage, exactly as it is in the file; it must be there only once.
        new: What to put in its place.
        replace_all: Replace it wherever it is, in place of only once.
    """
    sandbox = sandbox_of(env)
    with sandbox.lock:
        data = _existing(sandbox, path)
        text = _text(data)
        if text is None:
            raise ToolError(f"{brief(path)} is no text and can't be edited.")
        count = _found(text, old, new, replace_all, path)
        changed = text.replace(old, new).encode("utf-8", "replace")
        known = seen(env, sandbox.inside(path)) == digest(data)
        sandbox.write(path, changed)
        if known:
            note(env, sandbox.inside(path), digest(changed))
    return f"Replaced {count} passage{'' if count == 1 else 's'} in {path}."


@tool(capability=permissions.WRITE)
def remove_file(env: Env, path: str) -> str:
    """Remove a file, or an empty folder.

    Args:
        path: What to remove, from the workspace on.
    """
    sandbox = sandbox_of(env)
    with sandbox.lock:
        try:
            old = sandbox.read(path)
        except ToolError:
            # A folder, a link, or too large to be read: it may be removed all the same.
            old = None
        if not sandbox.remove(path):
            raise ToolError(_missing(sandbox, path))
        note(env, sandbox.inside(path), None)
    return f"Removed {path}.{_kept(env, 'remove_file', old, None)}"


@tool(name="glob", capability=permissions.GLOB, idempotent=True)
def glob_files(env: Env, pattern: str) -> str:
    """List the files of the workspace whose paths match a pattern.

    Args:
        pattern: Such as *.txt, src/*.py or **/*.md; ** stands for any folders.
    """
    fits = matcher(pattern)
    found = [entry.path for entry in sandbox_of(env).entries() if fits(entry.path)]
    if not found:
        return f"No file matches {brief(pattern)}."
    more = len(found) - MAX_FOUND
    left = [f"[{more} more; give a narrower pattern]"] if more > 0 else []
    return "\n".join([*sorted(found)[:MAX_FOUND], *left])


def _read(sandbox: Sandbox, path: str) -> bytes | None:
    """Give a file's content; None where a folder is, if there is anything at all."""
    try:
        data = sandbox.read(path)
    except ToolError:
        if _below(sandbox, path):
            return None
        raise
    if data is None and not _below(sandbox, path):
        raise ToolError(_missing(sandbox, path))
    return data


def _existing(sandbox: Sandbox, path: str) -> bytes:
    data = sandbox.read(path)
    if data is None:
        raise ToolError(_missing(sandbox, path))
    return data


def _below(sandbox: Sandbox, path: str) -> list[str]:
    """Give the names right in a folder."""
    try:
        folder = sandbox.inside(path)
    except ToolError:
        return []
    prefix = f"{folder}/" if folder else ""
    names = set()
    for entry in sandbox.entries():
        if entry.path.startswith(prefix):
            name, deeper, _ = entry.path[len(prefix) :].partition("/")
            names.add(name + deeper)
    return sorted(names)


def _folder(sandbox: Sandbox, path: str) -> str:
    names = _below(sandbox, path)
    if not names:
        return "The workspace has no files yet."
    return "\n".join(names[:MAX_FOUND])


def _missing(sandbox: Sandbox, path: str) -> str:
    names = [entry.path for entry in sandbox.entries()]
    near = get_close_matches(path[:200], names[:MAX_FOUND], n=3, cutoff=0.7)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    return f"There is no file {brief(path)}.{hint}"


def _text(data: bytes) -> str | None:
    """Give the content as text, None when it is none."""
    if b"\x00" in data[:8192]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _page(text: str, offset: int, limit: int) -> ToolResult:
    part = page(
        text,
        offset - 1,
        min(limit, conf.get("TRUNCATE_LINES") - 1),
        max_bytes=conf.get("TRUNCATE_BYTES"),
        max_line_chars=conf.get("TRUNCATE_LINE_CHARS"),
    )
    if not part.text and offset > 1:
        raise ToolError(f"The file has {part.total_lines} lines; line {offset} is beyond its end.")
    shown = part.text
    if part.next_offset is not None:
        joint = "" if shown.endswith("\n") else "\n"
        shown += f"{joint}[More of {part.total_lines:,} lines: offset={part.next_offset + 1}.]"
    # Within the caps already.
    return ToolResult(shown or "(The file is empty.)", truncated=True)


def _refuse_unseen(env: Env, sandbox: Sandbox, path: str, old: bytes) -> None:
    known = seen(env, sandbox.inside(path))
    if known is None:
        raise ToolError(
            f"{brief(path)} exists, with {len(old)} bytes, and was not read; read it with "
            f"read_file first."
        )
    if known != digest(old):
        raise ToolError(
            f"{brief(path)} was changed since it was read; read it again with read_file first."
        )


def _found(text: str, old: str, new: str, replace_all: bool, path: str) -> int:
    if not old:
        raise ToolError("The passage to replace is empty; use write_file for a new file.")
    if old == new:
        raise ToolError("The passage and what is to replace it are the same.")
    count = text.count(old)
    if not count:
        raise ToolError(
            f"The passage is not in {brief(path)}; it must be exact, with its spaces and line ends."
        )
    if count > 1 and not replace_all:
        raise ToolError(
            f"The passage is in {brief(path)} {count} times; give more of what is around it, or "
            f"set replace_all."
        )
    return count


def _kept(env: Env, name: str, old: bytes | None, new: bytes | None) -> str:
    """Keep what was there as an output, and say so."""
    if old is None or old == new:
        return ""
    keep, text = env.metadata.get("keep_output"), _text(old)
    kept = None if keep is None or text is None else keep(text, ToolCall("", name))
    how = "" if kept is None else f"; read_output(id={kept!r}) still gives it"
    verb = "had" if new is None else "replaced"
    return f" It {verb} {len(old)} bytes (SHA-256 {digest(old)[:12]}){how}."
