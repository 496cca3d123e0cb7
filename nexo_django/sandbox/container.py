"""The container sandbox: each command in a container of its own, which goes when it ends."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.sandbox import workspaces
from nexo_django.sandbox.base import MAX_FILE_BYTES, SECONDS, Place, ShellResult, Watch
from nexo_django.sandbox.commands import passed, runnable, seconds
from nexo_django.sandbox.folders import WorkspaceSandbox
from nexo_django.sandbox.paths import MOUNT
from nexo_django.sandbox.process import Order, run

ENGINES = ("docker", "podman")
# Of the engine's client: it could not do what it was asked for.
ENGINE_FAILED = 125
START_SECONDS = 20.0


class ContainerSandbox(WorkspaceSandbox):
    """A workspace for each chat, and a shell in containers of `image`, which must be there.

    The engine is `engine`, a program, or the first of docker and podman. A container has no
    network, no capability, a read-only system, and `user` as its user.
    """

    name = "container"

    def __init__(
        self,
        image: str,
        *,
        engine: str | None = None,
        root: str | os.PathLike[str] | None = None,
        memory: str = "512m",
        processes: int = 64,
        cpus: float = 1,
        tmp: str = "64m",
        user: int = 65534,
        max_file_bytes: int = MAX_FILE_BYTES,
        folder: Path | None = None,
    ) -> None:
        if not isinstance(image, str) or not image.strip() or image.startswith("-"):
            raise ConfigurationError(
                f"ContainerSandbox takes the name of an image, not {brief(image)}."
            )
        self.image, self.engine, self.user = image, engine, user
        self.memory, self.processes, self.cpus, self.tmp = memory, processes, cpus, tmp
        # Who is not root can't give files away, and runs the commands as itself.
        owner = (user, user) if os.geteuid() == 0 else None
        self._ids = f"{user}:{user}" if owner else f"{os.geteuid()}:{os.getegid()}"
        super().__init__(root, folder, max_file_bytes=max_file_bytes, owner=owner)

    def for_chat(self, place: Place) -> ContainerSandbox:
        """Give the sandbox with the chat's own workspace."""
        return type(self)(
            self.image,
            engine=self.engine,
            root=self.root,
            memory=self.memory,
            processes=self.processes,
            cpus=self.cpus,
            tmp=self.tmp,
            user=self.user,
            max_file_bytes=self.max_file_bytes,
            folder=workspaces.folder(self.root, place.agent_name, place.instance_id),
        )

    def check(self) -> None:
        """Raise ConfigurationError when there is no engine; whether it answers, a command tells."""
        self._engine()

    def run(
        self, command: str, timeout: float = SECONDS, watch: Watch | None = None
    ) -> ShellResult:
        """Run a command in a container of its own."""
        line, name = runnable(command), f"nexo-{uuid.uuid4().hex}"
        os.close(self._files.open_root())
        try:
            ended = self._client(self.arguments(name, line), seconds(timeout), watch)
        except BaseException:
            self._end(name)
            raise
        if ended.stopped:
            # The client's end is not the container's.
            self._end(name)
        if ended.code == ENGINE_FAILED:
            said = ended.stderr.strip()[-300:] or "it said nothing"
            raise ToolError(f"The container engine could not run the command: {said}")
        return ended

    def arguments(self, name: str, command: str) -> list[str]:
        """Give the engine's command line for a command."""
        options = ["--rm", "--name", name, "--label", "nexo_django=sandbox", "--pull", "never"]
        options += ["--network", "none", "--cap-drop", "ALL", "--init"]
        options += ["--security-opt", "no-new-privileges", "--read-only", "--ipc", "none"]
        options += ["--pids-limit", str(self.processes), "--cpus", str(self.cpus)]
        options += ["--memory", self.memory, "--memory-swap", self.memory]
        options += ["--ulimit", "core=0", "--ulimit", f"fsize={self.max_file_bytes * 5}"]
        options += ["--tmpfs", f"/tmp:rw,nosuid,nodev,size={self.tmp}", "--user", self._ids]  # noqa: S108
        options += ["--mount", f"type=bind,source={self.folder},target={MOUNT}"]
        options += ["--workdir", MOUNT, "--env", f"HOME={MOUNT}", "--entrypoint", "/bin/sh"]
        return ["run", *options, self.image, "-c", command]

    def _client(
        self, line: Sequence[str], timeout: float, watch: Watch | None = None
    ) -> ShellResult:
        kept = ("HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "XDG_RUNTIME_DIR")
        env = passed(kept)
        command = [self._engine(), *line]
        return run(Order(command, "/", env, timeout), watch)

    def _end(self, name: str) -> None:
        self._client(["rm", "--force", name], START_SECONDS)

    def _engine(self) -> str:
        names = ENGINES if self.engine is None else (self.engine,)
        for name in names:
            if found := shutil.which(name):
                return found
        raise ConfigurationError(
            f"The sandbox 'container' needs {' or '.join(names)} on PATH; there is none."
        )
