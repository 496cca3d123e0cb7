"""Points where a process can be made to die or its database to fail: every statement and commit.

A worker counts the points it passes; at the chosen one it runs the action, which kills it or
raises. Without an action the labels are kept: a dry run that says how many points there are.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db.backends.signals import connection_created

from tests.durability import journal

# (label, connection): what happens at the chosen point; the connection is None outside SQL.
Action = Callable[[str, Any], None]

BEFORE, MODEL, STREAM = "before the prompt's commit", "during the model call", "during the stream"
COMMITTED = "after the lease's commit, before the model"
COMPACTING = "compacting, before the model"
CALLS, TOOLS = "committing the calls", "before or in a tool"
RESULT, BETWEEN = "after a tool, before its result's commit", "between parallel tools"
ANSWER, AFTER = "committing the answer", "after the answer's commit, before the lease's return"
PHASES = (
    BEFORE,
    COMMITTED,
    COMPACTING,
    MODEL,
    STREAM,
    CALLS,
    TOOLS,
    BETWEEN,
    RESULT,
    ANSWER,
    AFTER,
)


class Points:
    """The points of this process; one instance is in force at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.instance = ""
        self.disarm()

    def arm(
        self,
        at: int = 0,
        action: Action | None = None,
        *,
        sql_only: bool = False,
        sticky: bool = False,
    ) -> None:
        """Count from now on, and act at point number `at`; if `sticky` at every later one too."""
        with self.lock:
            self.labels: list[str] = []
            self.armed, self.at, self.action = True, at, action
            self.sql_only, self.sticky = sql_only, sticky
            self.phase, self.fired, self.prompting = BEFORE, "", False

    def disarm(self) -> None:
        """Stop counting."""
        with self.lock:
            self.armed, self.fired, self.phase, self.prompting = False, "", BEFORE, False
            self.labels = []

    def enter(self, phase: str) -> None:
        """Say which part of the turn begins."""
        with self.lock:
            if self.armed:
                self.phase = phase

    def reach(self, label: str, connection: Any = None) -> None:
        """Pass a point."""
        with self.lock:
            if not self.armed or (self.sql_only and connection is None):
                return
            self.labels.append(label)
            due = len(self.labels) >= self.at if self.sticky else len(self.labels) == self.at
            if self.action is None or not self.at or not due:
                return
            self.fired = self.fired or f"{self.phase}: {label}"
        self.action(label, connection)

    def statement(self, sql: str, connection: Any) -> None:
        """Pass the point before a statement."""
        label = brief(sql)
        self.reach(f"before {label}", connection)
        if label == "INSERT nexo_django_turn":
            self.prompting = True

    def committed(self, connection: Any) -> None:
        """Pass the point after a commit."""
        if self.prompting and self.phase == BEFORE:
            self.enter(COMMITTED)
        self.reach("after COMMIT", connection)


points = Points()


def brief(sql: str) -> str:
    """Name a statement by its verb and table."""
    verb, _, rest = sql.strip().partition(" ")
    verb = verb.upper()
    table = re.search(r'(?:INTO|FROM|UPDATE)\s+[`"]?(\w+)', sql, re.IGNORECASE)
    return f"{verb} {table[1] if table else rest[:20]}".strip()


def die(label: str, connection: Any) -> None:
    """Die as a process dies when the machine's memory is full: at once, with no cleanup."""
    journal.write(points.instance, "died", phase=points.phase, label=label)
    os.kill(os.getpid(), signal.SIGKILL)
    # Another thread may hold the interpreter for the rest of its slice.
    time.sleep(600)


def watch_connections() -> None:
    """Pass a point at every statement and commit of every connection opened from now on."""
    connection_created.connect(_watch, dispatch_uid="durability", weak=False)


def _watch(sender: Any, connection: Any, **kwargs: Any) -> None:
    if getattr(connection, "watched", False):
        return
    connection.watched = True
    commit = connection._commit

    def watched_commit() -> Any:
        points.reach("before COMMIT", connection)
        done = commit()
        points.committed(connection)
        return done

    def watched_execute(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        points.statement(sql, connection)
        return execute(sql, params, many, context)

    connection._commit = watched_commit
    connection.execute_wrappers.append(watched_execute)


@contextmanager
def armed(at: int = 0, action: Action | None = None, **options: bool) -> Iterator[Points]:
    """Count within the block; see Points.arm()."""
    points.arm(at, action, **options)
    try:
        yield points
    finally:
        points.disarm()
