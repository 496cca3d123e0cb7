"""The bounded pool of threads in which the async twins run the synchronous stack."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from nexo_django import conf
from nexo_django.connections import release_thread
from nexo_django.middleware.parallel import in_transaction

T = TypeVar("T")

_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("nexo_in_pool", default=False)
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


def submit(function: Callable[[], T]) -> Future[T]:
    """Run a function in the pool, from synchronous code that does not wait for its end."""
    context = contextvars.copy_context()
    context.run(_inside.set, True)

    def work() -> T:
        try:
            return context.run(function)
        finally:
            release_thread()

    return _executor().submit(work)


async def in_pool(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a function in the pool, with this task's context variables, and await it.

    A cancelled task does not stop the function: what it has begun is finished and stored.
    In a test's transaction it runs in the thread that has the transaction.
    """
    if await in_test_thread():
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
    context = contextvars.copy_context()
    nested = _inside.get()
    context.run(_inside.set, True)

    def work() -> T:
        try:
            return context.run(function, *args, **kwargs)
        finally:
            release_thread()

    # A turn of the pool that waits for another must not wait for a place in it, too.
    executor = ThreadPoolExecutor(1, thread_name_prefix="nexo-nested") if nested else _executor()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        if nested:
            executor.shutdown(wait=False)


async def in_test_thread() -> bool:
    """Whether a test's transaction is open where Django runs the synchronous code of a test."""
    utils = sys.modules.get("django.test.utils")
    if utils is None or not hasattr(utils._TestState, "saved_data"):
        return False
    return await sync_to_async(in_transaction, thread_sensitive=True)()
