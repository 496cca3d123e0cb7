"""Many turns of one process that wait for a model at once, over a pool of few connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from tests.durability import scratch
from tests.durability.forks import Child, fork
from tests.durability.report import Report


def waiting(report: Report, url: str, turns: int, seconds: float, connections: int) -> None:
    """Run the turns, and count the server's connections meanwhile."""
    child = fork(_turns, turns)
    most = _most_connections(url, child)
    outcome = child.wait()
    report.equal("replies", outcome["replies"], {"done": turns})
    report.expect(most <= connections, f"{most} connections were open, of {connections}")
    report.expect(most > 0, "no connection was seen")
    report.sound(*(f"waiting-{number}" for number in range(0, turns, max(1, turns // 20))))
    report.say(
        f"waiting: {turns} turns at once against a model of {seconds} s: "
        f"{outcome['replies'].get('done', 0)} replies in {outcome['seconds']:.1f} s "
        f"({outcome['processor']:.1f} s of processor), at most {most} of {connections} connections"
    )
    for error in outcome["errors"]:
        report.say(error)


def _most_connections(url: str, child: Child) -> int:
    connection, most = scratch.connect(url), 0
    try:
        while not child.done:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            # The one that looks is one of them.
            most = max(most, connection.execute(sql).fetchone()[0] - 1)
            time.sleep(0.02)
    finally:
        connection.close()
    return most


def _turns(count: int) -> dict[str, Any]:
    return asyncio.run(_gathered(count))


async def _gathered(count: int) -> dict[str, Any]:
    from nexo_django import Session
    from tests.durability import journal
    from tests.durability.workers import Durable

    async def one(number: int) -> Any:
        instance = f"waiting-{number}"
        journal.write(instance, journal.ISSUED, name="p1")
        return await Session.resume(Durable, instance).aprompt("p1 slow")

    began, processor = time.monotonic(), time.process_time()
    outcomes = await asyncio.gather(*(one(n) for n in range(count)), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    return {
        "seconds": time.monotonic() - began,
        "processor": time.process_time() - processor,
        "replies": Counter(
            type(o).__name__ if isinstance(o, BaseException) else o.status for o in outcomes
        ),
        "errors": sorted({f"{type(e).__name__}: {e}" for e in errors})[:5],
    }
