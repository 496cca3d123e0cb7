"""Which contents of files a chat has seen: it may replace only those, whoever changed them."""

from __future__ import annotations

import json
from typing import Any

from nexo_django.pipeline import Env
from nexo_django.sandbox.base import Place, Sandbox
from nexo_django.sandbox.choice import resolve
from nexo_django.sandbox.files import OWN, FileStore, HeldFiles

SEEN = f"{OWN}seen.json"
MAX_SEEN = 2000


def files_of(env: Env) -> FileStore:
    """Give the files of the turn's chat, or in a bare pipeline some that last as long as it."""
    if env.turn is not None:
        found: FileStore = env.turn.files
        return found
    held: FileStore = env.metadata.setdefault("files", HeldFiles())
    return held


def sandbox_of(env: Env) -> Sandbox:
    """Give the turn's sandbox, which is opened when it is first used."""
    if env.sandbox is None:
        context = env.metadata.get("context")
        place = Place(
            getattr(context, "agent_name", ""), getattr(context, "instance_id", ""), files_of(env)
        )
        env.sandbox = _declared(env.agent).for_chat(place)
    opened: Sandbox = env.sandbox
    return opened


def _declared(agent: Any) -> Sandbox:
    opened = getattr(agent, "opened", None)
    declared: Sandbox = resolve() if opened is None else opened()
    return declared


def seen(env: Env, path: str) -> str | None:
    """Give the digest of what the chat saw under a path, None when it saw nothing."""
    return _load(files_of(env)).get(path)


def note(env: Env, path: str, digest: str | None) -> None:
    """Keep that the chat has seen this content, or with None that it is gone.

    Nothing is written where no tool of the turn would ask.
    """
    if not any(getattr(tool, "name", "") == "write_file" for tool in env.tools):
        return
    files = files_of(env)
    known = _load(files)
    if known.get(path) == digest:
        return
    known.pop(path, None)
    if digest is not None:
        known[path] = digest
    for stale in list(known)[: max(0, len(known) - MAX_SEEN)]:
        del known[stale]
    files.write(SEEN, json.dumps(known).encode())


def _load(files: FileStore) -> dict[str, Any]:
    try:
        known = json.loads(files.read(SEEN) or b"{}")
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}
