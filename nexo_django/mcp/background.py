"""The one thread of a process in which the connections to MCP servers live.

Callers hand it a coroutine and wait. It starts with the first connection, and a forked child
starts one of its own: its parent's connections are none of its.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

from nexo_django.pipeline import Env

T = TypeVar("T")
# How often a waiting turn looks whether it was cancelled; a signal is heard then at the latest.
LONGEST_WAIT = 0.5


class Owned(Protocol):
    """A server's process, as the end of this one and a fork must find it."""

    def kill(self) -> None: ...

    def disown(self) -> None: ...


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owned: set[Owned] = set()
# A child must neither close nor collect what its parent still uses.
_parents: list[Any] = []


def loop() -> asyncio.AbstractEventLoop:
    """Give the event loop of this process, which runs in its own thread."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="nexo-mcp", daemon=True).start()
        return _loop


def current() -> asyncio.AbstractEventLoop | None:
    """Give the event loop of this process if it has begun one."""
    return _loop


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Begin a coroutine in the thread."""
    return asyncio.run_coroutine_threadsafe(work, loop())


def finish(future: Future[T], env: Env | None = None) -> T:
    """Wait for a coroutine, and let go of it when the turn must not go on."""
    try:
        while not future.done():
            wait([future], timeout=LONGEST_WAIT)
            if env is not None and not future.done():
                env.checkpoint()
        return future.result()
    except BaseException:
        future.cancel()
        raise


def soon(function: Callable[..., Any], *args: Any) -> None:
    """Have the thread call a function, without waiting; from a finalizer too."""
    running = _loop
    if running is not None and not running.is_closed():
        running.call_soon_threadsafe(function, *args)


def own(process: Owned) -> None:
    """Remember a process that must end with this one."""
    _owned.add(process)


def release(process: Owned) -> None:
    """Forget a process that has ended."""
    _owned.discard(process)


def _end() -> None:
    """End every server: the interpreter goes, and nobody would."""
    for process in list(_owned):
        process.kill()


def _forget() -> None:
    """Leave the parent its connections, in a forked child."""
    global _loop, _lock, _owned
    for process in _owned:
        process.disown()
    _parents.extend((_loop, _owned))
    _loop, _lock, _owned = None, threading.Lock(), set()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
