"""Starting the provider servers of others, which tests/peers/install puts in place."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1] / "peers"
AIMOCK = HOME / "node_modules" / ".bin" / "llmock"
LLMOCK = HOME / "venv" / "bin" / "llmock"


def needs(program: Path) -> pytest.MarkDecorator:
    """Skip the tests of a server that is not installed."""
    reason = f"{program.name} is not installed: run tests/peers/install"
    return pytest.mark.skipif(not program.exists(), reason=reason)


@contextlib.contextmanager
def running(
    program: Path,
    *options: str,
    port_option: str | None = None,
    port_variable: str | None = None,
    port: int | None = None,
    log: Path,
) -> Iterator[str]:
    """Run a server while the block runs, on a free port or a given one, and give its address.

    It is told the port by an option or by a variable of its environment.
    """
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            chosen = port or probe.getsockname()[1]
        with log.open("wb") as out:
            command = [str(program), *options, *([port_option, str(chosen)] if port_option else [])]
            env = {**os.environ, **({port_variable: str(chosen)} if port_variable else {})}
            process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        try:
            # It ends at once where another took the port in between.
            if _answers(process, chosen):
                yield f"http://127.0.0.1:{chosen}"
                return
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise RuntimeError(f"{program.name} did not start: {log.read_text(errors='replace')[-2000:]}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return process.poll() is None
        time.sleep(0.1)
    return False
