"""Events as an iterator: the turn runs in a thread of its own and is only observed.

A slow reader does not hold the turn; one who leaves ends it: the next event raises inside
the turn, and what the model had said so far is stored as interrupted.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from nexo_django.connections import release_thread
from nexo_django.events import Event, OnEvent
from nexo_django.middleware.parallel import in_transaction
from nexo_django.pool import in_pool, in_test_thread

Run = Callable[[OnEvent], Any]

# How long a reader who leaves waits for the turn to store what it has.
PARTING_SECONDS = 10.0


class StreamClosed(GeneratorExit):
    """Nobody reads the stream any more."""


class _Feed:
    """Hands the events of a running turn to its reader; refuses them once it left."""

    def __init__(self, put: Callable[[Event | None], object]) -> None:
        self.put = put
        self.closed = threading.Event()
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def listen(self, type: str, payload: dict[str, Any]) -> None:
        if self.closed.is_set():
            raise StreamClosed
        self.put(Event(type, payload))

    def work(self, run: Run) -> None:
        try:
            run(self.listen)
        except BaseException as error:
            # The reader raises it; a reader who left has nothing to hear.
            self.error = None if isinstance(error, StreamClosed) else error
        finally:
            self.ended.set()
            self.put(None)


def iterate(run: Run) -> Iterator[Event]:
    """Run a turn in a thread and give its events as they happen; raise what it raised."""
    if in_transaction():
        # Another thread would not see the test's transaction: the turn runs first, whole.
        events: list[Event] = []
        run(lambda kind, payload: events.append(Event(kind, payload)))
        yield from events
        return
    events_queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    feed = _Feed(events_queue.put)
    context = contextvars.copy_context()

    def work() -> None:
        try:
            context.run(feed.work, run)
        finally:
            release_thread()

    threading.Thread(target=work, name="nexo-stream", daemon=True).start()
    try:
        while (event := events_queue.get()) is not None:
            yield event
    finally:
        feed.closed.set()
        feed.ended.wait(PARTING_SECONDS)
    if feed.error is not None:
        raise feed.error


async def aiterate(run: Run) -> AsyncIterator[Event]:
    """See iterate(); the turn runs in the bounded pool."""
    if await in_test_thread():
        for told in await in_pool(lambda: list(iterate(run))):
            yield told
        return
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    feed = _Feed(lambda event: _deliver(loop, events, event))
    task = asyncio.ensure_future(in_pool(feed.work, run))
    try:
        while (event := await events.get()) is not None:
            yield event
    finally:
        feed.closed.set()
        await asyncio.wait([task], timeout=PARTING_SECONDS)
    if feed.error is not None:
        raise feed.error


def _deliver(
    loop: asyncio.AbstractEventLoop, events: asyncio.Queue[Event | None], event: Event | None
) -> None:
    try:
        loop.call_soon_threadsafe(events.put_nowait, event)
    except RuntimeError:
        # The loop is gone, and the reader with it.
        if event is not None:
            raise StreamClosed from None
