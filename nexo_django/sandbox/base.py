"""What every sandbox does: keep files under paths, and run commands where it has a shell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

from nexo_django.exceptions import NotSupported
from nexo_django.sandbox.files import FileStore, HeldFiles
from nexo_django.sandbox.paths import inside

MAX_FILE_BYTES = 10_000_000
MAX_OUTPUT_BYTES = 1_000_000
MAX_ENTRIES = 20_000
SECONDS, MAX_SECONDS = 30.0, 600.0

# Called again and again while a command runs; what it raises ends the command.
Watch = Callable[[], None]


class Entry(NamedTuple):
    """A file of a sandbox."""

    path: str
    size: int


@dataclass(frozen=True)
class ShellResult:
    """How a command ended.

    `code` is its exit code, negative for the signal that killed it, and None when it was
    stopped from outside: then `stopped` says why. Of `stdout` and `stderr` the last
    MAX_OUTPUT_BYTES each are kept; `omitted` is how many bytes came before them.
    """

    stdout: str
    stderr: str
    code: int | None
    stopped: str = ""
    omitted: int = 0


@dataclass(frozen=True)
class Place:
    """The chat that a sandbox is opened for."""

    agent_name: str = ""
    instance_id: str = ""
    files: FileStore = field(default_factory=HeldFiles)


class Sandbox:
    """A workspace of files, and what may run in it.

    `path` is as a model gave it; `inside` gives the name it stands for. Every method
    raises ToolError, with a text for the model, for what can't be done. Threads may share a
    sandbox; `lock` is what a change that depends on what was read is made under.
    """

    name: ClassVar[str] = ""
    # Whether run() works.
    has_shell: ClassVar[bool] = False

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def for_chat(self, place: Place) -> Sandbox:
        """Give the sandbox of one chat; without I/O. Most are the same for all chats."""
        return self

    def check(self) -> None:
        """Raise ConfigurationError when this sandbox can't work here."""

    def inside(self, path: str) -> str:
        """Give the one name of a path from the workspace on, however it was written."""
        return inside(path)

    def read(self, path: str) -> bytes | None:
        """Give a file's content, None when there is none of that path."""
        raise NotImplementedError

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, at once or not at all; folders on the way are made."""
        raise NotImplementedError

    def remove(self, path: str) -> bool:
        """Delete a file or an empty folder; False when there is nothing of that path."""
        raise NotImplementedError

    def entries(self) -> Iterator[Entry]:
        """Give the files, the first MAX_ENTRIES of them; links are not followed."""
        raise NotImplementedError

    def run(
        self, command: str, timeout: float = SECONDS, watch: Watch | None = None
    ) -> ShellResult:
        """Run a command in the workspace, and end all that it started before returning."""
        raise NotSupported(f"The sandbox {self.name!r} has no shell.")

    def describe(self) -> str:
        """Say in a sentence what the tools work in, for their descriptions."""
        return ""

    def discard(self) -> None:
        """Delete what is kept for the chat outside its store; the chat was deleted."""

    def close(self) -> None:
        """Give back what the sandbox holds; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
