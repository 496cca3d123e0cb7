"""Time a turn of a long chat that was compacted against one of a short chat, in one run.

    python -m tests.benchmarks.compacted [--long 100000] [--short 100] [--turns 200] [--database URL]

What was compacted away must cost nothing: the view of the long chat is as long as the short
chat, and so a turn must take as long, and as many statements. Their turns alternate.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tests.benchmarks.turn import compared, database, session, statements

LIMIT = 1.2


def main() -> int:
    """Print the medians; fail when the ratio or the statement count is off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--short", type=int, default=100)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--database", help="a database URL; default: a new SQLite file")
    options = parser.parse_args()
    with database(options.database):
        long, short = session(options.long), session(options.short)
        _compact(long, options.short)
        ratio = compared(
            f"{options.long} messages compacted to {options.short}",
            options.turns,
            compacted=lambda number: long.prompt(f"question {number}"),
            short=lambda number: short.prompt(f"question {number}"),
        )
        counts = [statements(long), statements(short)]
    same = len(set(counts)) == 1
    print(
        f"ratio {ratio:.2f} (limit {LIMIT}); statements {counts} ({'same' if same else 'DIFFERENT'})"
    )
    return 0 if ratio <= LIMIT and same else 1


def _compact(long: Any, size: int) -> None:
    """Put a summary for all messages but the last ones, in a view of `size` messages."""
    from nexo_django.messages import SUMMARY, USER, Message
    from tests.stores.changes import change

    turn = long.stored.maintain()
    summary = Message(USER, "What was said before.", kind=SUMMARY)
    turn.compacted(change(turn.messages, summary, *turn.messages[1 - size :]))
    turn.close()


if __name__ == "__main__":
    sys.exit(main())
