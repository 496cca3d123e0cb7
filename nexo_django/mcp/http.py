"""A server that runs elsewhere: the official transport, with a cap, and a token for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from nexo_django.exceptions import ToolError
from nexo_django.mcp.config import Server

if TYPE_CHECKING:
    import httpx2

# Longest wait for a connection; an answer may take as long as a call may.
CONNECT = 10.0
# What an answer may take longer than its call, so that the call says that it timed out.
MARGIN = 5.0


@asynccontextmanager
async def transport(
    server: Server,
    count: Callable[[int], None],
    token: Callable[[], str | None],
    status: Callable[[int], None],
) -> AsyncIterator[Any]:
    """Connect to a server while the block runs; gives the two streams of messages.

    `count` is told of the bytes of an answer, and raises where there are too many; `token`
    gives what to send with a request, and `status` is told how a request was refused.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    seconds = server.timeout
    limits = httpx2.Timeout(min(seconds, CONNECT), read=seconds + MARGIN)
    client = httpx2.AsyncClient(
        # What is not compressed has no size but its own.
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=limits,
        auth=_bearer(token),
        event_hooks={"response": [_checked(count, status)]},
    )
    async with client, _opened(streamable_http_client, server.url, client) as streams:
        yield streams


def _opened(
    connect: Callable[..., AbstractAsyncContextManager[Any]], url: str, client: Any
) -> AbstractAsyncContextManager[Any]:
    from nexo_django.mcp.connection import MAX_BYTES

    return connect(url, http_client=client, max_sse_event_size=MAX_BYTES)


def _bearer(token: Callable[[], str | None]) -> httpx2.Auth:
    import httpx2

    class Bearer(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Any:
            if (current := token()) is not None:
                request.headers["Authorization"] = f"Bearer {current}"
            yield request

    return Bearer()


def _checked(count: Callable[[int], None], status: Callable[[int], None]) -> Any:
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self.stream:
                try:
                    count(len(chunk))
                except ToolError as error:
                    # One that the transport answers the request with.
                    raise httpx2.StreamError(str(error)) from None
                yield chunk

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def hook(response: httpx2.Response) -> None:
        status(response.status_code)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("The answer is compressed.", request=response.request)
        response.stream = Counted(response.stream)

    return hook
