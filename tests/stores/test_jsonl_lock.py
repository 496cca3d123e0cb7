"""The lock between processes: the system frees a dead owner's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nexo_django.exceptions import SessionBusy, StoreFailed
from nexo_django.stores.jsonl_lock import FileLock

LONG = 60
OWNER = """
import sys
from pathlib import Path
from nexo_django.stores.jsonl_lock import FileLock

lock = FileLock(Path(sys.argv[1]))
lock.acquire(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.lock"


def test_two_locks_exclude_each_other(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    assert first.held()
    with pytest.raises(SessionBusy) as caught:
        second.acquire(0.01)
    assert caught.value.retry_after > 0
    assert not second.held()
    first.release()
    first.release()
    assert not first.held()
    second.acquire(0)
    second.release()
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_waits_gets_it(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    thread = threading.Thread(target=second.acquire, args=(LONG,))
    thread.start()
    first.release()
    thread.join(LONG)
    assert second.held()
    second.release()


def test_a_killed_owner_frees_it(path: Path) -> None:
    with _owner(path) as owner:
        lock = FileLock(path)
        with pytest.raises(SessionBusy):
            lock.acquire(0)
        owner.kill()
        owner.wait(LONG)
        lock.acquire(LONG)
        assert lock.held()
        lock.release()


def test_a_stopped_owner_keeps_it(path: Path) -> None:
    with _owner(path) as owner:
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(SessionBusy):
            FileLock(path).acquire(0)
        owner.kill()


FORKED = """
import os, sys
from pathlib import Path
from nexo_django.stores.jsonl_lock import FileLock

lock = FileLock(Path(sys.argv[1]))
lock.acquire(0)
if os.fork() == 0:
    print("child", lock.held(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_a_forked_child_does_not_hold_it(path: Path) -> None:
    with _owner(path, FORKED, "child False\n") as owner:
        owner.kill()
        owner.wait(LONG)
        # The child lives on until its input ends.
        lock = FileLock(path)
        lock.acquire(LONG)
        assert lock.held()
        lock.release()


def test_giving_back_frees_it_while_a_child_is_being_forked(path: Path) -> None:
    lock, other = FileLock(path), FileLock(path)
    lock.acquire(0)
    assert lock._fd is not None
    copy = os.dup(lock._fd)
    try:
        lock.release()
        other.acquire(0)
        assert other.held()
    finally:
        os.close(copy)
        other.release()


def test_a_removed_lock_is_held_no_longer(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.acquire(0)
    path.unlink()
    assert not first.held()
    second.acquire(0)
    assert second.held()
    first.release()
    assert second.held()
    second.release()


def test_a_lock_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        FileLock(tmp_path / "missing" / "log.lock").acquire(0)


def _owner(path: Path, code: str = OWNER, told: str = "held\n") -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == told
    return owner
