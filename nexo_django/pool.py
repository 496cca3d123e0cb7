"""The bounded pool of threads in which the async twins run the synchronous stack."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from nexo_django import conf
from nexo_django.connections import release_thread

T = TypeVar("T")

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_size = 0


def _executor() -> ThreadPoolExecutor:
    """Give the process's pool, made anew when MAX_IN_FLIGHT changed."""
    global _pool, _size
    size = conf.get("MAX_IN_FLIGHT")
    with _lock:
        if _pool is None or _size != size:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _size = ThreadPoolExecutor(size, thread_name_prefix="nexo"), size
        return _pool


def _forget() -> None:
    """Drop the parent's pool: its threads do not exist in a forked child."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


async def in_pool(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function in the pool, with this task's context variables, and await it.

    A cancelled task does not stop the function: what it has begun is finished and stored.
    """
    context = contextvars.copy_context()

    def work() -> T:
        try:
            return context.run(function, *args, **kwargs)
        finally:
            release_thread()

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_executor(), work)
