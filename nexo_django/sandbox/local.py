"""The local sandbox: a directory of this machine, and commands as the site's own user.

It is no isolation. The file tools can't leave the root; a command can do whatever the user
that runs the site can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.sandbox.base import (
    MAX_FILE_BYTES,
    MAX_SECONDS,
    SECONDS,
    Entry,
    Sandbox,
    ShellResult,
    Watch,
)
from nexo_django.sandbox.process import PATH, Order, run
from nexo_django.sandbox.rooted import RootedFiles

# What of the site's environment a command sees; everything else may be a secret.
PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


class LocalSandbox(Sandbox):
    """Files under `root`, and a shell there.

    A command gets a clean environment (PASSED and `env`), with the root as its home. When it
    ends or its time is over, all that it started is killed, in other sessions too.
    """

    name = "local"
    has_shell = True

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

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        return self._files.read(path)

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole."""
        self._files.write(path, data)

    def remove(self, path: str) -> bool:
        """Delete a file or an empty folder."""
        return self._files.remove(path)

    def entries(self) -> Iterator[Entry]:
        """Give the files."""
        return self._files.entries()

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


def shell() -> str:
    """Give the shell that commands are run by."""
    return next((name for name in ("/bin/bash", "/bin/sh") if os.path.exists(name)), "/bin/sh")


def passed(more: Iterable[str] = ()) -> dict[str, str]:
    """Give what a command may see of the site's environment."""
    given = {name: os.environ[name] for name in (*PASSED, *more) if name in os.environ}
    return {"PATH": PATH, **given}


def runnable(command: Any) -> str:
    """Give a command that the system takes, or raise ToolError."""
    if not isinstance(command, str) or not command.strip():
        raise ToolError("The command is empty.")
    if "\x00" in command:
        raise ToolError("The command holds a NUL character.")
    text = command.encode("utf-8", "replace").decode()
    # The system takes 128 KiB for one argument.
    if len(text.encode()) > 100_000:
        raise ToolError("The command is longer than 100000 bytes; write it to a file and run that.")
    return text


def seconds(timeout: float) -> float:
    """Give a time that a command may take, or raise ToolError."""
    if not 0 < timeout <= MAX_SECONDS:
        raise ToolError(f"The timeout must be more than 0 and at most {MAX_SECONDS:g} seconds.")
    return float(timeout)
