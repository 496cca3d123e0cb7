"""Runs a command under the supervisor: its output is capped as it is read, and all it starts ends."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nexo_django.exceptions import ToolError
from nexo_django.sandbox.base import MAX_OUTPUT_BYTES, ShellResult, Watch

SUPERVISOR = Path(__file__).with_name("supervisor.py")
# How long the supervisor may take to start and to end what it started.
GRACE_SECONDS = 20.0
# How long output is waited for after the supervisor has gone.
DRAIN_SECONDS = 1.0
WATCH_SECONDS = 0.25
PATH = "/usr/local/bin:/usr/bin:/bin"
_CHUNK = 65536
_COLOURS = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")


@dataclass(frozen=True)
class Order:
    """What the supervisor is to run, and within what.

    `limits` are those of each process, by the names of the system's RLIMITs; `processes`,
    `memory`, and `disk` and `files` under `folder`, are for all processes together.
    """

    command: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    timeout: float
    limits: Mapping[str, int] = field(default_factory=dict)
    processes: int | None = None
    memory: int | None = None
    folder: str | None = None
    disk: int | None = None
    files: int | None = None
    user: int | None = None
    group: int | None = None
    no_new_privileges: bool = False


def run(order: Order, watch: Watch | None = None) -> ShellResult:
    """Run a command and give its result; what `watch` raises ends it and passes through."""
    reading, writing = os.pipe()
    try:
        supervisor = subprocess.Popen(  # noqa: S603
            [python(), "-I", "-S", "-B", str(SUPERVISOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
            pass_fds=(writing,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(reading)
        raise ToolError(f"The command could not be started: {error.strerror}.") from error
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as report:
        return _Reading(supervisor, report).result(order, writing, watch)


def python() -> str:
    """Give a Python to run the supervisor: inside some servers `sys.executable` is the server."""
    names = [sys.executable, f"{sys.prefix}/bin/python3", f"{sys.base_prefix}/bin/python3"]
    for name in names:
        if name and os.path.basename(name).startswith("python") and os.access(name, os.X_OK):
            return name
    found = shutil.which("python3", path=PATH)
    if found is None:
        raise ToolError("The command could not be started: there is no python3 to start it.")
    return found


class Tail:
    """The end of what was read, however much that was."""

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._chunks: deque[bytes] = deque()
        self._limit, self._held = limit, 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Keep data, and let go what is further from the end than the limit."""
        self._chunks.append(data)
        self._held += len(data)
        self.total += len(data)
        while self._held - len(self._chunks[0]) >= self._limit:
            self._held -= len(self._chunks.popleft())

    @property
    def omitted(self) -> int:
        """How many bytes were let go."""
        return max(0, self.total - self._limit)

    def text(self) -> str:
        """Give what is kept as text, without the codes for colours."""
        kept = b"".join(self._chunks)[-self._limit :]
        if self.omitted:
            # Not with the rest of a character.
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))
        return _COLOURS.sub("", kept.decode("utf-8", "replace"))


class _Reading:
    """The supervisor's three streams, read until all have ended or the time is over."""

    def __init__(self, supervisor: subprocess.Popen[bytes], report: IO[bytes]) -> None:
        self.supervisor, self.report = supervisor, report
        self.out, self.err, self.said = Tail(), Tail(), Tail(_CHUNK)

    def result(self, order: Order, writing: int, watch: Watch | None) -> ShellResult:
        try:
            self._send({**vars(order), "report": writing})
            self._read(time.monotonic() + order.timeout + GRACE_SECONDS, watch)
        finally:
            self._end()
        return self._made()

    def _send(self, order: dict[str, Any]) -> None:
        assert self.supervisor.stdin is not None
        with suppress(BrokenPipeError):
            self.supervisor.stdin.write(json.dumps(order).encode() + b"\n")
            self.supervisor.stdin.flush()

    def _read(self, until: float, watch: Watch | None) -> None:
        watched = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for stream, tail in self._streams():
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, tail)
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, WATCH_SECONDS)):
                    if not self._took(key) and selector.unregister(key.fileobj).data is self.said:
                        # Whoever still writes got away from the supervisor.
                        until = min(until, time.monotonic() + DRAIN_SECONDS)
                if watch is not None and time.monotonic() - watched >= WATCH_SECONDS:
                    watch()
                    watched = time.monotonic()

    def _took(self, key: selectors.SelectorKey) -> bool:
        """Read what is there; False at the end."""
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return True
        if data:
            key.data.add(data)
        return bool(data)

    def _streams(self) -> list[tuple[IO[bytes], Tail]]:
        assert self.supervisor.stdout is not None
        assert self.supervisor.stderr is not None
        return [
            (self.supervisor.stdout, self.out),
            (self.supervisor.stderr, self.err),
            (self.report, self.said),
        ]

    def _end(self) -> None:
        """Have the supervisor end everything, and end it too where it does not."""
        assert self.supervisor.stdin is not None
        with suppress(OSError):
            self.supervisor.stdin.close()
        try:
            self.supervisor.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            self.supervisor.wait()
        for stream, _ in self._streams()[:2]:
            stream.close()
        told = self._told()
        if "pid" in told and not told.keys() & {"code", "stopped", "failed"}:
            # The supervisor was killed; the command's own group is what is known of it.
            with suppress(OSError):
                os.killpg(told["pid"], signal.SIGKILL)

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for line in self.said.text().splitlines():
            with suppress(ValueError):
                told.update(json.loads(line))
        return told

    def _made(self) -> ShellResult:
        told = self._told()
        if "failed" in told:
            raise ToolError(f"The command could not be started: {told['failed']}.")
        return ShellResult(
            self.out.text(),
            self.err.text(),
            told.get("code"),
            "" if "code" in told else told.get("stopped", "its supervisor was killed"),
            self.out.omitted + self.err.omitted,
        )
