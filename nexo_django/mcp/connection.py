"""One connection to one server; everything here runs in the thread of `background`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nexo_django.exceptions import ToolError
from nexo_django.mcp import http, stdio
from nexo_django.mcp.config import Server

logger = logging.getLogger(__name__)
T = TypeVar("T")
# What a server may send from one call on until the next.
MAX_BYTES = 8 * 1024 * 1024
# How long a server may take to say that it still answers, after a call that it did not.
PROBE = 5.0
LET_GO = 2.0

Work = Callable[[Any], Awaitable[T]]


class Unreachable(ToolError):
    """The server could not be reached, or its connection ended."""


class NotSent(Unreachable):
    """The connection was gone before the server had the request: it may be sent again."""


class Connection:
    """A connection, and what became of it.

    It lives in a task of its own, which opens and closes it. `alive` is False as soon as the
    server hung up, sent too much, or can't be told from one that never answers.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.token: str | None = None
        self.alive = False
        self.client: Any = None
        self._seen = 0
        self._flooded = False
        self._status = 200
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self._ready = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, token: str | None) -> None:
        """Connect, or raise Unreachable."""
        self.token = token
        self._task = task = asyncio.create_task(self._live())
        try:
            await asyncio.wait_for(self._ready.wait(), self.server.timeout)
        except TimeoutError:
            await self.close()
            raise Unreachable(
                f"The MCP server {self.server.name!r} did not answer within "
                f"{self.server.timeout:g} seconds."
            ) from None
        except BaseException:
            task.cancel()
            raise
        if not self.alive:
            raise self._gone("could not be reached")

    async def request(self, work: Work[T], token: str | None) -> T:
        """Do `work(client)`, or raise ToolError: it failed, took too long, or the server ended."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if self._probing is not None:
            await asyncio.wait({self._probing})
        if not self.alive or self._task is None:
            raise NotSent(str(self._gone("ended")))
        self.token, self._seen, self._status = token, 0, 200
        task = asyncio.ensure_future(work(self.client))
        try:
            seconds = self.server.timeout
            race = {task, self._task}
            await asyncio.wait(race, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except MCPError as error:
            # 404 is how a server says that it does not know the session: it was restarted.
            if error.code == CONNECTION_CLOSED or self._flooded or self._status == 404:
                await self._settle()
                raise self._gone("ended before it answered") from None
            raise self._failed(error.message) from None
        except ToolError:
            raise
        except Exception as error:
            raise self._failed(str(error) or type(error).__name__) from None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=LET_GO)
        if self._task.done():
            raise self._gone("ended before it answered")
        self._probing = asyncio.create_task(self._probe())
        raise ToolError(
            f"The MCP server {self.server.name!r} did not answer within {seconds:g} seconds; "
            f"what became of the call is unknown."
        )

    async def close(self) -> None:
        """End the connection and its process; may be called twice."""
        self.alive = False
        self._ended.set()
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        if not self._ready.is_set():
            task.cancel()
        await asyncio.wait({task})

    async def _live(self) -> None:
        from mcp import Client

        try:
            async with Client(self._transport(), cache=None) as self.client:
                self.alive = not self._ended.is_set()
                self._ready.set()
                await self._ended.wait()
        except asyncio.CancelledError:
            if not self._ended.is_set():
                raise
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.alive = False
            self._ready.set()

    def _transport(self) -> Any:
        if self.server.command:
            return stdio.transport(self.server, self._count, self._ended.set)
        return http.transport(self.server, self._count, lambda: self.token, self._note)

    def _count(self, size: int) -> None:
        self._seen += size
        if self._seen > MAX_BYTES:
            self._flooded, self.alive = True, False
            self._ended.set()
            raise ToolError("too much")

    def _note(self, status: int) -> None:
        if status >= 400:
            self._status = status

    async def _probe(self) -> None:
        """Give up a connection whose server answers nothing any more."""
        try:
            await asyncio.wait_for(self.client.list_tools(), PROBE)
        except Exception as error:
            from mcp import MCPError

            if not isinstance(error, MCPError):
                logger.warning("server=%s does not answer; it is given up", self.server.name)
                await self.close()
        finally:
            self._probing = None

    async def _settle(self) -> None:
        """Wait until it is known why a connection closed."""
        self.alive = False
        self._ended.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait({self._task}, timeout=LET_GO)

    def _gone(self, what: str) -> Unreachable:
        name = f"The MCP server {self.server.name!r}"
        error = self._leaf()
        if isinstance(error, ToolError):
            return Unreachable(str(error))
        if self._flooded:
            return Unreachable(
                f"{name} sent more than {MAX_BYTES} bytes; what it sent was dropped, and the "
                f"connection with it. Ask for less."
            )
        reason = self._reason(error)
        # Nobody listened, or nobody knew the session: nothing was done.
        kind = NotSent if self._status == 404 or _refused(error) else Unreachable
        return kind(f"{name} {what}{f': {reason}' if reason else '.'}")

    def _failed(self, text: str) -> ToolError:
        if self._status >= 400:
            text = f"{text} (HTTP {self._status})"
        said = self.server.redacted(text, self.token)
        return ToolError(f"The MCP server {self.server.name!r} gave an error: {said}")

    def _leaf(self) -> BaseException | None:
        error = self._failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return error

    def _reason(self, error: BaseException | None) -> str:
        said = "" if error is None else str(error) or type(error).__name__
        status = f"HTTP {self._status}" if self._status >= 400 else ""
        return self.server.redacted(", ".join(filter(None, (status, said))), self.token)


def _refused(error: BaseException | None) -> bool:
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
