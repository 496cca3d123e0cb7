"""Runs one command for sandbox/process.py, and ends it with everything that it started.

A program of its own, with nothing but the standard library: what must happen between fork and
exec is safe only in a process with one thread, and a process's orphans come to it only if it
asked for them, which a web server must not. It reads its order as a line of JSON from stdin,
and a stdin that ends means that whoever gave the order is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

POLL_SECONDS, MEASURE_SECONDS = 0.05, 0.1
ROUNDS, MAX_DEPTH, NICE = 500, 64, 5
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38


def main() -> None:
    """Run the command, and tell its number and how it ended, a line of JSON each."""
    order = json.loads(sys.stdin.buffer.readline())
    prctl(PR_SET_CHILD_SUBREAPER)
    first()
    outcome: dict[str, Any] = {"stopped": "given up"}
    try:
        outcome = watched(started(order), order)
    except OSError as error:
        outcome = {"failed": error.strerror or type(error).__name__}
    finally:
        end_all()
    tell(order, outcome)


def first() -> None:
    """Go before whatever the command starts, or a thousand processes leave this one no time."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def tell(order: dict[str, Any], told: dict[str, Any]) -> None:
    """Write a line, if anybody reads it."""
    with suppress(OSError):
        os.write(order["report"], json.dumps(told).encode() + b"\n")


def started(order: dict[str, Any]) -> int:
    """Start the command in a session of its own, and give its number."""
    child = subprocess.Popen(  # noqa: S603
        order["command"],
        stdin=subprocess.DEVNULL,
        cwd=order["cwd"],
        env=order["env"],
        start_new_session=True,
        preexec_fn=lambda: confined(order),
    )
    # It is collected with all the others.
    child.returncode = 0
    return child.pid


def confined(order: dict[str, Any]) -> None:
    """Take away from the child what its order says; runs between fork and exec."""
    # Here, since the command may kill whoever would tell it later.
    tell(order, {"pid": os.getpid()})
    os.nice(NICE)
    user = order.get("user")
    limits = dict(order["limits"])
    if order.get("processes"):
        # The limit counts every task of the user, also those that are not the command's.
        limits["NPROC"] = tasks_of(os.getuid() if user is None else user) + order["processes"]
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    if user is not None:
        os.setgroups([])
        os.setresgid(order["group"], order["group"], order["group"])
        os.setresuid(user, user, user)
    if order.get("no_new_privileges"):
        prctl(PR_SET_NO_NEW_PRIVS)
    os.umask(0o022)


def watched(pid: int, order: dict[str, Any]) -> dict[str, Any]:
    """Wait for the command; give its exit code, or why it was stopped."""
    until = time.monotonic() + order["timeout"]
    limits = Limits(order)
    while True:
        code = reaped(pid)
        if code is not None:
            return {"code": code}
        now = time.monotonic()
        if now >= until:
            return {"stopped": "timeout"}
        if over := limits.exceeded(now):
            return {"stopped": over}
        pause = min(POLL_SECONDS, max(until - now, 0.001))
        readable, _, _ = select.select([sys.stdin], [], [], pause)
        # Nothing is ever said after the order: this is its end.
        if readable:
            return {"stopped": "given up"}


def reaped(pid: int) -> int | None:
    """Collect whoever has ended; give the command's exit code once that has."""
    code = None
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if found == 0:
            return code
        if found == pid:
            code = os.waitstatus_to_exitcode(status)


class Limits:
    """What all processes of the command may take together; looked at now and then."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.processes, self.memory = order.get("processes"), order.get("memory")
        self.folder: str | None = order.get("folder")
        self.disk = self.files = 0
        if self.folder is not None:
            used, files = usage(self.folder)
            # A folder that is too full already may be tidied up.
            self.disk, self.files = max(order["disk"], used), max(order["files"], files)
        self.next = 0.0

    def exceeded(self, now: float) -> str | None:
        """Name the limit that is exceeded, if it is time to look."""
        if now < self.next:
            return None
        over = self._exceeded()
        spent = time.monotonic() - now
        self.next = now + min(max(MEASURE_SECONDS, 5 * spent), 1.0)
        return over

    def _exceeded(self) -> str | None:
        pids = descendants()
        if self.processes is not None and len(pids) > self.processes:
            return "processes"
        if self.memory is not None and sum(map(resident, pids)) > self.memory:
            return "memory"
        if self.folder is None:
            return None
        used, files = usage(self.folder)
        hidden: dict[tuple[int, int], int] = {}
        for pid in pids:
            hidden.update(deleted_files(pid))
        over = used + sum(hidden.values()) > self.disk or files > self.files
        return "disk" if over else None


def end_all() -> None:
    """Kill every descendant, also those in other sessions, until none is left.

    What was started while the others were killed is killed in the next round.
    """
    for attempt in range(ROUNDS):
        pids = descendants()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reaped(0)
        time.sleep(0.001 if attempt < 20 else 0.02)


def descendants() -> list[int]:
    """Give all processes below this one, with those that nobody has collected yet."""
    children: dict[int, list[int]] = {}
    for name in processes():
        if (parent := parent_of(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def processes() -> list[str]:
    """Give the numbers of all processes; none where the system does not tell."""
    try:
        return [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def parent_of(pid: str) -> int | None:
    """Give a process's parent, None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of a program may hold anything, parentheses too.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def resident(pid: int) -> int:
    """Give how much memory a process holds that is not a file's."""
    total = 0
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def deleted_files(pid: int) -> dict[tuple[int, int], int]:
    """Give the sizes of files that a process holds open and that have no name any more."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                file = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found


def usage(folder: str) -> tuple[int, int]:
    """Give how many bytes of disk a folder takes, and how many files and folders it has.

    What lies too deep to be counted counts as more than any limit.
    """
    total = files = 0
    todo = [(folder, 0)]
    while todo:
        path, depth = todo.pop()
        if depth > MAX_DEPTH:
            return sys.maxsize, files
        with suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                files += 1
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        todo.append((entry.path, depth + 1))
    return total, files


def tasks_of(user: int) -> int:
    """Count the threads of a user."""
    count = 0
    for name in processes():
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def prctl(option: int) -> None:
    """Switch a property of this process on, where the system has it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0)


if __name__ == "__main__":
    main()
