"""The local sandbox: a directory of this machine, and commands as the site's own user.

It is no isolation. The file tools can't leave the root; a command can do whatever the user
that runs the site can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.sandbox.base import MAX_FILE_BYTES, SECONDS, ShellResult, Watch
from nexo_django.sandbox.commands import passed, runnable, seconds, shell
from nexo_django.sandbox.folders import FolderSandbox
from nexo_django.sandbox.process import Order, run
from nexo_django.sandbox.rooted import RootedFiles


class LocalSandbox(FolderSandbox):
    """Files under `root`, and a shell there.

    A command gets a clean environment (`commands.PASSED` and `env`), with the root as its home. When it
    ends or its time is over, all that it started is killed, in other sessions too.
    """

    name = "local"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        env: Mapping[str, str] | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        processes: int = 256,
        make: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(root, str | os.PathLike) or not str(root).strip():
            raise ConfigurationError(f"LocalSandbox takes the directory, not {brief(root)}.")
        # Where it is a link itself, the host says so, not a model.
        self.root = Path(os.path.realpath(root))
        self.env, self.processes = dict(env or {}), processes
        self._files = RootedFiles(self.root, max_file_bytes=max_file_bytes, make=make)
        self._make = make

    def check(self) -> None:
        """Raise ConfigurationError when the root is no directory."""
        if self._make is None and not self.root.is_dir():
            raise ConfigurationError(
                f"The sandbox's root {self.root} is no directory; make it, or name another."
            )

    def run(
        self, command: str, timeout: float = SECONDS, watch: Watch | None = None
    ) -> ShellResult:
        """Run a command in the root, as the site's user."""
        os.close(self._files.open_root())
        order = Order(
            [shell(), "-c", runnable(command)],
            cwd=str(self.root),
            env={**passed(), "HOME": str(self.root), "TERM": "dumb", **self.env},
            timeout=seconds(timeout),
            limits={"CORE": 0},
            processes=self.processes,
            no_new_privileges=True,
        )
        return run(order, watch)

    def describe(self) -> str:
        """Say what the tools work in."""
        return "The workspace is a folder of the machine that the application runs on."
