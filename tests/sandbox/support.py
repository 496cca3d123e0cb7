"""Sandboxes to try, and where their workspaces may be."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nexo_django.exceptions import ConfigurationError
from nexo_django.sandbox.base import Place, Sandbox
from nexo_django.sandbox.bubblewrap import BubblewrapSandbox, Limits
from nexo_django.sandbox.local import LocalSandbox
from nexo_django.sandbox.virtual import VirtualSandbox

MIB = 1024 * 1024


@contextmanager
def reachable() -> Iterator[Path]:
    """Give a directory that an unprivileged user can go through, as root's commands need."""
    path = Path(tempfile.mkdtemp(prefix="nexo-test-", dir="/var/tmp"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def bubblewrap_problem() -> str | None:
    """Say why bubblewrap can't be tried here; on CI, which installs it, that is a failure."""
    try:
        with reachable() as root:
            BubblewrapSandbox(root).check()
    except ConfigurationError as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            return None
        return str(error)
    return None


def virtual(root: Path) -> Sandbox:
    return VirtualSandbox(max_bytes=20 * MIB)


def local(root: Path) -> Sandbox:
    (root / "work").mkdir(exist_ok=True)
    return LocalSandbox(root / "work", processes=48)


def bubblewrap(root: Path) -> Sandbox:
    limits = Limits(memory_bytes=256 * MIB, disk_bytes=40 * MIB, file_bytes=10 * MIB, processes=32)
    return BubblewrapSandbox(root / "boxes", limits=limits).for_chat(Place("Agent", "one"))


MAKERS = {"virtual": virtual, "local": local, "bubblewrap": bubblewrap}
