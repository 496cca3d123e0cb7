"""Children of a warmed process: a fork costs milliseconds where an import of Django costs half a second.

The parent opens no database connection and starts no thread, so that a child may do both.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A forked process that gives one JSON value."""

    pid: int
    pipe: int
    code: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless the child has been waited for."""
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self) -> Any:
        """Give what the child's function returned; None when it was killed."""
        data = b""
        while chunk := os.read(self.pipe, 65536):
            data += chunk
        os.close(self.pipe)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self.code == -signal.SIGKILL:
            return None
        value = json.loads(data) if data else {"failed": f"exit code {self.code}"}
        if "failed" in value:
            raise RuntimeError(f"A child failed:\n{value['failed']}")
        return value["value"]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def done(self) -> bool:
        """Whether it has begun to tell its value, or ended."""
        return bool(select.select([self.pipe], [], [], 0)[0])


def fork(function: Callable[..., Any], *args: Any) -> Child:
    """Run a function in a child process."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    code = 1
    try:
        die_with_parent()
        os.close(reading)
        _tell(writing, {"value": function(*args)})
        code = 0
    except BaseException:
        _tell(writing, {"failed": traceback.format_exc()})
    finally:
        # No cleanup of what belongs to the parent.
        sys.stdout.flush()
        os._exit(code)


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a child and give what it returned."""
    return fork(function, *args).wait()


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a thread, with a database connection of its own, and give its value."""
    from django.db import connections

    values: list[Any] = []

    def work() -> None:
        try:
            values.append(function(*args))
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return values[0]


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait for a condition and give its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {seconds:.0f} s in vain for {what}.")
        time.sleep(0.01)
    return value


def _tell(pipe: int, value: Any) -> None:
    data = json.dumps(value, default=str).encode()
    while data:
        data = data[os.write(pipe, data) :]


def die_with_parent() -> None:
    """Leave no orphan behind when the parent is killed; only Linux has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
