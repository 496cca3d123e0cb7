"""The database fails at every statement of a turn: what the caller is told, and what is left.

The errors are the server's own (raised by a statement that makes it answer with that code) or,
on SQLite, the driver's class; a dropped connection really is closed by the server.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.durability import scratch
from tests.durability.forks import apart, call
from tests.durability.harness import expire
from tests.durability.kill_matrix import KINDS, Case, plan
from tests.durability.points import Action
from tests.durability.report import Report

POSTGRESQL = {"deadlock": "40P01", "lock timeout": "55P03", "disk full": "53100"}
# Errors of MariaDB: the number, its SQLSTATE, and whether it ends the transaction.
MYSQL = {
    "deadlock": (1213, "40001", True),
    "lock timeout": (1205, "HY000", False),
    "disk full": (1021, "HY000", False),
}
SQLITE = {
    "lock timeout": "database is locked",
    "disk full": "database or disk is full",
    "disk error": "disk I/O error",
}
SHAPES = ("plain", "tool", "pair", "stream", "squeeze")
# After a commit only the connection can fail.
LATE = "after COMMIT"
# A case a child: after so many a new process goes on.
CASES_PER_CHILD = 50


def faults(report: Report, url: str, count: int, seed: int) -> None:
    """Raise each fault at each point of each shape, or at as many as `count` allows."""
    kinds = sorted(_faults(url))
    points = {shape: call(count_statements, shape) for shape in SHAPES}
    every = sum(counts["fresh"] + counts["used"] for counts in points.values()) * len(kinds)
    cases = [asdict(case) for case in plan(points, count or every, random.Random(seed), timed=0)]
    totals: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for start in range(0, len(cases), CASES_PER_CHILD):
        outcomes = call(_run, url, start, cases[start : start + CASES_PER_CHILD])
        for outcome in outcomes:
            by_kind[outcome["fault"]].update(outcome["counts"])
            totals.update(outcome["counts"])
            for failure in outcome["failures"]:
                report.expect(False, failure)
    for kind in kinds:
        report.say(f"faults, {kind}: {_line(by_kind[kind])}")
    report.say(f"faults, in total: {_line(totals)}; {len(report.failures)} failures")


def _line(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts)) or "none"


def _faults(url: str) -> dict[str, Action]:
    """Give the faults that this kind of database has, each as what happens at the point."""
    vendor = scratch.vendor(url)
    if vendor == "sqlite":
        return {kind: _sqlite_error(text) for kind, text in SQLITE.items()}
    dropped: dict[str, Action] = {"connection dropped": _dropper(url), "down": _dropper(url)}
    if vendor == "postgresql":
        return dropped | {kind: _postgresql_error(code) for kind, code in POSTGRESQL.items()}
    return dropped | {kind: _mysql_error(*error) for kind, error in MYSQL.items()}


def _dropper(url: str) -> Action:
    def drop(label: str, connection: Any) -> None:
        raw = connection.connection
        # One that is closed already fails by itself.
        if scratch.vendor(url) == "postgresql":
            if not raw.closed:
                end = f"SELECT pg_terminate_backend({raw.info.backend_pid}, 10000)"
                scratch.execute(url, end)
        elif raw.thread_id() in {row[0] for row in scratch.execute(url, "SHOW PROCESSLIST")}:
            scratch.execute(url, f"KILL {raw.thread_id()}")
        _execute(connection, "SELECT 1")

    return drop


def _postgresql_error(code: str) -> Action:
    def fail(label: str, connection: Any) -> None:
        if label != LATE:
            raising = f"RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'"
            _execute(connection, f"DO $$ BEGIN {raising}; END $$")

    return fail


def _mysql_error(number: int, state: str, ends: bool) -> Action:
    def fail(label: str, connection: Any) -> None:
        if label == LATE:
            return
        if ends:
            _execute(connection, "ROLLBACK")
        signal = f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'injected'"
        _execute(connection, signal)

    return fail


def _sqlite_error(text: str) -> Action:
    def fail(label: str, connection: Any) -> None:
        if label == LATE:
            return
        with connection.wrap_database_errors:
            raise sqlite3.OperationalError(text)

    return fail


def _execute(connection: Any, sql: str) -> None:
    """Run a statement past the wrappers, and raise what the driver raises as Django does."""
    with connection.wrap_database_errors:
        connection.connection.cursor().execute(sql)


def count_statements(shape: str) -> dict[str, Any]:
    """See kill_matrix.count_points(); only what the database sees."""
    from tests.durability import workers
    from tests.durability.points import armed

    counts = []
    for number in range(2):
        with armed(sql_only=True) as points:
            workers.run(f"dry-{shape}", f"p{number}", shape)
            counts.append(len(points.labels))
    return {"fresh": counts[0], "used": counts[1]}


def _run(url: str, start: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the cases in this process, one after the other, as a worker that lives on."""
    actions = sorted(_faults(url).items())
    outcomes = []
    for number, values in enumerate(cases, start):
        kind, action = actions[number % len(actions)]
        case = Case(**values)
        case.instance, case.name = f"fault-{number}", "p1"
        outcomes.append(_fail(case, kind, action))
    return outcomes


def _fail(case: Case, kind: str, action: Action) -> dict[str, Any]:
    from tests.durability import workers
    from tests.durability.points import armed

    if not case.fresh:
        workers.run(case.instance, "p0", "squeeze" if case.shape == "squeeze" else "tool")
    with armed(case.point, action, sql_only=True, sticky=kind == "down") as points:
        raised = _raised(lambda: workers.run(case.instance, case.name, case.shape, key=case.key))
        fired = points.fired or "not reached"
    counts: Counter[str] = Counter({_told(raised): 1, "cases": 1})
    failures = _go_on(case, counts)
    where = f"{kind} at {fired}, {case.shape}, {case.instance}, then {case.afterwards}"
    from nexo_django.exceptions import NexoError

    if raised is not None and not isinstance(raised, NexoError):
        failures.append(f"the caller got {type(raised).__name__}: {raised}")
    return {"fault": kind, "counts": counts, "failures": [f"{f} [{where}]" for f in failures]}


def _told(raised: BaseException | None) -> str:
    return "not noticed by the caller" if raised is None else f"told as {type(raised).__name__}"


def _raised(work: Callable[[], Any]) -> BaseException | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def _go_on(case: Case, counts: Counter[str]) -> list[str]:
    from tests.durability.kill_matrix import _check

    if apart(lambda: _free(case.instance)):
        counts["leases left to expire"] += 1
    case.real_takeover = True
    found = _check(case)
    return [f"{name}: {detail}" for name in KINDS for detail in found[name]]


def _free(instance: str) -> bool:
    """End the lease of a session, and say whether it had one."""
    from nexo_django.models import Chat

    if not Chat.objects.filter(instance_id=instance).exclude(lease_token="").exists():
        return False
    expire(instance)
    return True
