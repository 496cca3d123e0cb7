"""Starting the provider servers of others, which tests/peers/install puts in place."""

from __future__ import annotations

import contextlib
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
def running(program: Path, *options: str, port_option: str, log: Path) -> Iterator[str]:
    """Run a server on a free port while the block runs, and give its address."""
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with log.open("wb") as out:
            command = [str(program), *options, port_option, str(port)]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            # It ends at once where another took the port in between.
            if _answers(process, port):
                yield f"http://127.0.0.1:{port}"
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
