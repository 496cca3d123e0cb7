"""A long task in one turn, in a window that is far too small for it, through real requests.

    python -m tests.fuzz.long_run [--steps 500] [--window 16000] [--seed 1] [--database URL]

The provider counts with its own tokenizer and refuses what does not fit; none may be refused,
and the last request must still begin with what the user asked.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.wire import SmallContext

TASK = "Count the blue herons of Lake 4711, and look at everything before you say a number."
WORDS = ("heron", "lake", "north", "because", "seven", "the", "counted", "again", "of", "reeds")


def found(kind: str, size: int, seed: int) -> str:
    """Give about so many characters of what a tool may find."""
    dice = Random(f"{kind}{size}{seed}")
    if kind == "base64":
        return base64.b64encode(dice.randbytes(size * 3 // 4)).decode()
    if kind == "chinese":
        return "".join(dice.choices("我们今天去公园玩天气很好湖上有鹭", k=size // 2))
    if kind == "emoji":
        return "".join(dice.choices("😀🎉🚀🦆🌊", k=size // 3))
    if kind == "json":
        rows = [
            {"id": dice.randint(1, 9999), "name": dice.choice(WORDS)} for _ in range(size // 30)
        ]
        return json.dumps(rows)
    if kind == "code":
        return "".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(size // 30))
    if kind == "log":
        return "".join(
            f"2026-11-30T21:03:{n % 60:02d}Z INFO GET /{n} 200\n" for n in range(size // 40)
        )
    return " ".join(dice.choices(WORDS, k=size // 6)) or "nothing"


@dataclass
class Report:
    """What came of a run."""

    requests: int
    summaries: int
    refused: list[str]
    invalid: list[str]
    compactions: int
    unreached: int
    errors: list[str]
    largest: int
    kept_task: bool
    answered: bool
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether anything is not as it must be."""
        bad = self.refused or self.invalid or self.errors
        return bool(bad) or not (self.kept_task and self.answered and self.compactions)

    def __str__(self) -> str:
        return "\n".join(f"{name:12} {value}" for name, value in vars(self).items())


def run(steps: int, window: int, seed: int) -> Report:
    """Run the task; a database must be there."""
    # Not before the database is chosen.
    from nexo_django import Agent, Session, tool

    @tool
    def look(kind: str, size: int, seed: int) -> str:
        """Look around, for so much of a kind."""
        return found(kind, size, seed)

    started, told = time.monotonic(), []
    with SmallContext(window, steps, seed) as wire:
        attributes: dict[str, Any] = {
            "name": f"LongRun{seed}",
            "model": "openai/gpt-4o-mini",
            "instructions": "You are a patient counter of birds.",
            "tools": [look],
            "max_turns": steps + 10,
            "context_window": window,
            "options": {"api_base": wire.url, "api_key": "k", "timeout": 60},
        }
        session = Session.resume(type("LongRun", (Agent,), attributes), f"run-{steps}-{window}")
        reply = session.prompt(TASK, on_event=lambda *event: told.append(event))
        last = wire.asked[-1]["messages"]
        compacted = [payload for kind, payload in told if kind == "compacted"]
        return Report(
            requests=len(wire.requests),
            summaries=wire.summaries,
            refused=wire.rejected,
            invalid=wire.faults,
            compactions=len(compacted),
            unreached=sum(not payload["reached"] for payload in compacted),
            errors=[f"{p['error']}: {p['message']}" for kind, p in told if kind == "error"],
            largest=wire.largest,
            kept_task=any(m["role"] == "user" and m["content"] == TASK for m in last),
            answered=reply.status == "done" and wire.made == steps,
            seconds=round(time.monotonic() - started, 1),
        )


def main() -> int:
    """Print what came of it; the exit code says whether it failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", help="a database URL; default: a new SQLite file")
    options = parser.parse_args()
    from tests.benchmarks.turn import database

    with database(options.database):
        report = run(options.steps, options.window, options.seed)
    print(report)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
