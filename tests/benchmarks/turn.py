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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    with database(options.database):
        from tests.benchmarks import floor

        floor.create()
        worst = max(_ratio(size, options.turns) for size in options.sizes)
        counts = [statements(session(size), options.show) for size in options.counted]
    same = len(set(counts)) == 1
    print(
        f"worst ratio {worst:.2f} (limit {LIMIT}); statements {counts} ({'same' if same else 'DIFFERENT'})"
    )
    return 0 if worst <= LIMIT and same else 1


@contextmanager
def database(url: str | None) -> Iterator[None]:
    """Make a database and use it: the one of the URL, or a new SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = url or f"sqlite:///{folder}/bench.sqlite3"
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        import django

        django.setup()
        from django.test.utils import setup_databases, teardown_databases

        old = setup_databases(verbosity=0, interactive=False)
        try:
            yield
        finally:
            teardown_databases(old, verbosity=0)


def _ratio(size: int, turns: int) -> float:
    """Print and give the median of our turn over the floor's at a history of `size`."""
    from tests.benchmarks import floor

    ours, bare = session(size), floor.chat(size)
    return compared(
        f"{size:>6} messages",
        turns,
        ours=lambda number: ours.prompt(f"question {number}"),
        floor=lambda number: floor.turn(bare, f"question {number}"),
    )


def compared(title: str, turns: int, **sides: Callable[[int], object]) -> float:
    """Run two sides in turn; print their medians and give that of the first over the second."""
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(turns):
        for side, run in sides.items():
            began = time.perf_counter()
            run(number)
            samples[side].append(time.perf_counter() - began)
    medians = {side: statistics.median(times[turns // 10 :]) for side, times in samples.items()}
    first, second = medians.values()
    shown = ", ".join(f"{side} {1000 * median:.2f} ms" for side, median in medians.items())
    print(f"{title}: {shown}, ratio {first / second:.2f}")
    return first / second


def statements(session: Any, show: bool = False) -> int:
    """Print and give the number of statements of a turn."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    session.prompt("warm up")
    with CaptureQueriesContext(connection) as captured:
        session.prompt("counted")
    print(f"{session.instance_id}: {len(captured)} statements a turn")
    if show:
        print(*(query["sql"][:160] for query in captured), sep="\n")
    return len(captured)


def session(size: int) -> Any:
    """Give a session whose chat has `size` messages."""
    from nexo_django import Session
    from tests.benchmarks.filling import fill
    from tests.support import make_agent

    made = Session.resume(make_agent(_answer, name="Benchmark"), f"size-{size}")
    if not made.stored.exists():
        made.prompt("begin")
        fill(made.instance_id, size - 2)
    return made


def _answer(env: Any) -> None:
    from nexo_django import Message, Usage

    env.messages.append(Message("assistant", "an answer", usage=Usage(input=10, output=5)))


if __name__ == "__main__":
    sys.exit(main())
