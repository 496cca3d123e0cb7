"""A lock between processes whose liveness is the system's: a killed owner frees it. POSIX only."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

from nexo_django.exceptions import SessionBusy, StoreFailed

PAUSE = 0.05
RETRY_AFTER = 1.0


class FileLock:
    """An exclusive lock on a file beside the log; the log itself is replaced, a lock can't be.

    Two locks exclude each other in one process too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, wait: float) -> None:
        """Take the lock, or raise SessionBusy after `wait` seconds."""
        until = time.monotonic() + wait
        while not self._taken():
            left = until - time.monotonic()
            if left <= 0:
                raise SessionBusy(
                    "Another turn of this session is running.", retry_after=RETRY_AFTER
                )
            time.sleep(min(PAUSE, left))

    def held(self) -> bool:
        """Whether the lock is this one's."""
        return self._fd is not None and os.fstat(self._fd).st_nlink > 0

    def release(self) -> None:
        """Give the lock back; may be called twice."""
        if self._fd is not None:
            # A child that is being forked still has a copy; closing ours alone frees nothing.
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close this process's descriptor without freeing the lock for others that have it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _taken(self) -> bool:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(f"The lock {self.path} could not be opened: {error}.") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A deleted chat takes its lock file with it; who waited holds one that is gone.
            mine = os.fstat(fd).st_nlink > 0
        except BlockingIOError:
            mine = False
        except OSError as error:
            os.close(fd)
            raise StoreFailed(f"{self.path} could not be locked: {error}.") from error
        if not mine:
            os.close(fd)
            return False
        self._fd = fd
        _held.add(self)
        return True


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget() -> None:
    """Close a forked child's copies, which would keep a dead parent's locks alive."""
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget)
