"""Time a plain turn against a bare Django floor, in one run, and count its statements.

    python -m tests.benchmarks.turn [--sizes 10 100 1000] [--turns 200] [--database URL]

The floor reads the chat's messages and writes the two rows of a turn with a plain model: a
row a message, no loop, no lease, no checks. The model answers at once on both sides. Turns of
both sides alternate, so that a busy machine slows both; medians are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

LIMIT = 4.0


def main() -> int:
    """Print a line for each size; fail when a ratio or the statement count is off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--counted", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--database", help="a database URL; default: a new SQLite file")
    parser.add_argument("--show", action="store_true", help="print the counted statements")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = options.database or f"sqlite:///{folder}/bench.sqlite3"
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.test.utils import setup_databases, teardown_databases

    old = setup_databases(verbosity=0, interactive=False)
    try:
        from tests.benchmarks import floor

        floor.create()
        worst = max(_ratio(size, options.turns) for size in options.sizes)
        counts = [_statements(size, options.show) for size in options.counted]
    finally:
        teardown_databases(old, verbosity=0)
    same = len(set(counts)) == 1
    print(
        f"worst ratio {worst:.2f} (limit {LIMIT}); statements {counts} ({'same' if same else 'DIFFERENT'})"
    )
    return 0 if worst <= LIMIT and same else 1


def _ratio(size: int, turns: int) -> float:
    """Print and give the median of our turn over the floor's at a history of `size`."""
    from tests.benchmarks import floor

    ours, bare = _session(size), floor.chat(size)
    samples: dict[str, list[float]] = {"ours": [], "floor": []}
    for number in range(turns):
        samples["ours"].append(_timed(lambda n=number: ours.prompt(f"question {n}")))
        samples["floor"].append(_timed(lambda n=number: floor.turn(bare, f"question {n}")))
    medians = {side: statistics.median(times[turns // 10 :]) for side, times in samples.items()}
    ratio = medians["ours"] / medians["floor"]
    shown = ", ".join(f"{side} {1000 * median:.2f} ms" for side, median in medians.items())
    print(f"{size:>6} messages: {shown}, ratio {ratio:.2f}")
    return ratio


def _statements(size: int, show: bool) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    session = _session(size)
    session.prompt("warm up")
    with CaptureQueriesContext(connection) as captured:
        _session(size).prompt("counted")
    print(f"{size:>6} messages: {len(captured)} statements a turn")
    if show:
        print(*(query["sql"][:160] for query in captured), sep="\n")
    return len(captured)


def _session(size: int) -> Any:
    """Give a session whose chat has `size` messages."""
    from nexo_django import Session
    from tests.benchmarks import floor
    from tests.support import make_agent

    session = Session.resume(make_agent(_answer, name="Benchmark"), f"size-{size}")
    if not session.stored.exists():
        session.prompt("begin")
        floor.fill(session.instance_id, size - 2)
    return session


def _answer(env: Any) -> None:
    from nexo_django import Message, Usage

    env.messages.append(Message("assistant", "an answer", usage=Usage(input=10, output=5)))


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
