"""A server that is a process of ours: its pipes, its end, and how much it may say.

The official package's own transport reads lines of any length into memory, writes what is no
message to the log with a traceback, and hands the server's stderr to ours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nexo_django.exceptions import ToolError
from nexo_django.mcp import background
from nexo_django.mcp.config import Server

logger = logging.getLogger(__name__)
CHUNK = 65_536
# How much of what a server wrote to stderr is kept, and told when it ends by itself. More is
# kept than told, so that no secret is told in half.
TAIL, TOLD = 4_000, 500
# How long it may take to end once its input is closed, and once it was told to.
GRACE = 1.0
POLL = 0.02


class Process:
    """A running server, in a process group of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.tail = b""
        self.hung_up = False
        try:
            self.popen = subprocess.Popen(  # noqa: S603  the host names the command
                [server.command, *server.args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=server.environment(),
                cwd=server.cwd,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # A folder that is not there fails as a program does; only the name tells which.
            what = (
                f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            )
            raise ToolError(
                f"The MCP server {server.name!r} could not be started: {server.redacted(what)}."
            ) from None
        pipes = (self.popen.stdin, self.popen.stdout, self.popen.stderr)
        self.pipes = [pipe for pipe in pipes if pipe is not None]
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self.pipes)
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)
        background.own(self)

    @property
    def ended(self) -> bool:
        """Whether it has ended; it is left to be reaped, so that its id stays its own."""
        if self.popen.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.popen.pid, flags) is not None
        except ChildProcessError:
            return True

    async def stop(self) -> None:
        """End it and everything that it started, gently at first."""
        import anyio

        self.pipes[0].close()
        for number in (None, signal.SIGTERM):
            if number is not None:
                self._signal(number)
            until = time.monotonic() + GRACE
            while not self.ended and time.monotonic() < until:
                await anyio.sleep(POLL)
            if self.ended:
                break
        self.kill()

    def kill(self) -> None:
        """End it and everything that it started now, and reap it."""
        if self.popen.returncode is None:
            self._signal(signal.SIGKILL)
            # Not for ever: a process that hangs in the kernel can't be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(GRACE)
        self.disown()
        background.release(self)

    def disown(self) -> None:
        """Close its pipes and leave it alone."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def tell(self) -> None:
        """Log how it ended and what it said at last, when nobody asked it to end."""
        if self.hung_up:
            said = self.server.redacted(self.tail.decode(errors="replace"))
            told = (self.server.name, self.popen.returncode, said.strip()[-TOLD:])
            logger.warning("server=%s ended by itself, code=%s stderr=%r", *told)


@asynccontextmanager
async def transport(
    server: Server, count: Callable[[int], None], ended: Callable[[], None]
) -> AsyncIterator[Any]:
    """Run a server while the block runs; gives the two streams of messages.

    `count` is told of the bytes that come and raises where there are too many; `ended` is
    called when nothing more can come.
    """
    import anyio

    process = Process(server)
    try:
        to_session, from_server = anyio.create_memory_object_stream[Any](0)
        to_server, from_session = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as group:
            group.start_soon(_listen, process, to_session, count, ended)
            group.start_soon(_speak, process, from_session, ended)
            group.start_soon(_keep_tail, process)
            try:
                yield from_server, to_server
            finally:
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop()
            process.tell()


async def _listen(
    process: Process, to_session: Any, count: Callable[[int], None], ended: Callable[[], None]
) -> None:
    import anyio

    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_session:
            async for line in _lines(process.stdout, count):
                message = _parsed(line)
                if message is not None:
                    await to_session.send(message)
            process.hung_up = True
    ended()


def _parsed(line: bytes) -> Any:
    """Give a line's message; None for what a server prints although it should not."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _lines(handle: int, count: Callable[[int], None]) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    async for chunk in _chunks(handle):
        try:
            count(len(chunk))
        except ToolError:
            return
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            yield b"".join([*parts, piece])
            parts = []
        parts.append(rest)


async def _chunks(handle: int) -> AsyncIterator[bytes]:
    import anyio

    while True:
        await anyio.wait_readable(handle)
        try:
            chunk = os.read(handle, CHUNK)
        except BlockingIOError:
            continue
        except OSError:
            return
        if not chunk:
            return
        yield chunk


async def _speak(process: Process, from_session: Any, ended: Callable[[], None]) -> None:
    import anyio

    async with from_session:
        async for message in from_session:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            data = memoryview(f"{text}\n".encode())
            while data:
                await anyio.wait_writable(process.stdin)
                try:
                    data = data[os.write(process.stdin, data) :]
                except BlockingIOError:
                    continue
                except OSError:
                    ended()
                    return


async def _keep_tail(process: Process) -> None:
    async for chunk in _chunks(process.stderr):
        process.tail = (process.tail + chunk)[-TAIL:]
