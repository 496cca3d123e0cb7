"""Where the workspaces of chats are on this machine: a directory for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from nexo_django import conf
from nexo_django.exceptions import ToolError


def base(root: str | os.PathLike[str] | None = None) -> Path:
    """Give the directory of all workspaces: the one given, the setting's, or one in /var/tmp."""
    chosen = conf.get("SANDBOX_ROOT") if root is None else root
    if chosen is None:
        return Path(f"/var/tmp/nexo-{os.geteuid()}")  # noqa: S108
    return Path(os.path.realpath(chosen))


def folder(root: str | os.PathLike[str] | None, agent_name: str, instance_id: str) -> Path:
    """Give a chat's workspace: readable where it can be, and never another chat's."""
    digest = hashlib.sha256(json.dumps([agent_name, instance_id]).encode()).hexdigest()
    shown = [
        re.sub(r"[^A-Za-z0-9_-]+", "-", part)[:40] or "-" for part in (agent_name, instance_id)
    ]
    return base(root) / f"{'.'.join(shown)}.{digest[:32]}"


def make(
    workspace: Path,
    root: str | os.PathLike[str] | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Make a workspace, for its owner alone, where the place of all is the site's own."""
    parent = workspace.parent
    with suppress(FileExistsError):
        # Whom root's commands run as must get through it.
        parent.mkdir(mode=0o711, parents=True)
    found = parent.lstat()
    if root is None and conf.get("SANDBOX_ROOT") is None and _is_anothers(found):
        raise ToolError("The place of the workspaces belongs to another user; set SANDBOX_ROOT.")
    with suppress(FileExistsError):
        workspace.mkdir(mode=0o700)
        if owner is not None:
            os.chown(workspace, *owner)


def _is_anothers(found: os.stat_result) -> bool:
    return not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid()


def closed_to_others(folder: Path) -> Path | None:
    """Give a directory on the way to a workspace that another user can't go through."""
    for parent in folder.parents:
        if parent.is_dir() and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def remove(workspace: Path) -> None:
    """Delete a workspace, following no link."""
    shutil.rmtree(workspace, ignore_errors=True)
