"""Calls side by side, each in a thread of its own, told of in the thread that started them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Event
from typing import TypeVar

from django.conf import settings
from django.db import connections

T = TypeVar("T")
# A signal that comes just before a wait begins is handled only when the wait ends.
LONGEST_WAIT = 0.5


def together(
    work: Callable[[T], object],
    items: Sequence[T],
    *,
    limit: int,
    tell: Callable[[T], object],
    remaining: Callable[[], float],
) -> None:
    """Do `work` on every item, and `tell` of each here as it is done.

    When an item's work raises, no other is begun, those that run are waited for, and the
    first error is raised. What arises in this thread (a signal, a limit that `remaining`
    raises for) is raised at once: the work under way then goes on unheard.
    """
    pool = ThreadPoolExecutor(min(limit, len(items)), thread_name_prefix="nexo-tool")
    stop = Event()
    failure: BaseException | None = None
    try:
        pending: dict[Future[bool], T] = {
            pool.submit(copy_context().run, _apart, work, item, stop): item for item in items
        }
        while pending:
            timeout = min(remaining(), LONGEST_WAIT)
            done, _ = wait(pending, timeout=timeout, return_when=FIRST_COMPLETED)
            for future in [future for future in pending if future in done]:
                item = pending.pop(future)
                if error := future.exception():
                    failure = failure or error
                elif future.result():
                    tell(item)
    finally:
        stop.set()
        pool.shutdown(wait=False)
    if failure is not None:
        raise failure


def in_transaction() -> bool:
    """Whether a transaction is open in this thread, which another thread could not see into."""
    return settings.configured and any(
        connection.in_atomic_block for connection in connections.all(initialized_only=True)
    )


def _apart(work: Callable[[T], object], item: T, stop: Event) -> bool:
    """Do the work unless it must not begin any more, and say whether it was done."""
    if stop.is_set():
        return False
    try:
        work(item)
    except BaseException:
        stop.set()
        raise
    finally:
        # Django opens connections by thread, and nobody else could close this thread's.
        if settings.configured:
            connections.close_all()
    return True
