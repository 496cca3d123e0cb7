"""Does the default ladder summarise, and do summaries survive? 20,000 random sessions say so.

Run it with `python -m tests.fuzz.ladder [sessions]`. Brute's ladder, by the same count: the
summariser had something to summarise in 6.5 % of the runs that needed more than tool results,
and 2,217 of 2,217 earlier summaries were thrown away.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from random import Random

from nexo_django.compaction import ladder
from nexo_django.messages import SUMMARY
from nexo_django.tokens import Approximate
from nexo_django.transcript import problem, sendable
from tests.compaction.conversations import Summariser, conversation


def main(sessions: int = 20_000) -> int:
    """Print the counts; the number of faults is the exit code."""
    found: Counter[str] = Counter()
    counter, started = Approximate(), time.monotonic()
    for seed in range(sessions):
        random = Random(seed)
        messages = conversation(random, random.randint(1, 12))
        before = counter.count(messages)
        target = int(before * random.uniform(0.1, 0.9))
        summariser = Summariser()
        outcome = ladder(summariser, keep_steps=2).attempt(messages, target)
        found["runs"] += 1
        found["reached the target"] += outcome.reached
        needed = any(done.layer != "tool_results" for done in outcome.applied)
        found["dropped messages"] += needed
        found["... and summarised them"] += needed and bool(summariser.asked)
        old = [m for m in messages if m.kind == SUMMARY]
        found["earlier summaries"] += len(old)
        text = summariser.read
        lost = [m for m in old if m not in outcome.messages and (m.content or "")[:200] not in text]
        found["earlier summaries lost"] += len(lost)
        found["invalid requests"] += problem(sendable(outcome.messages)) is not None
        found["larger than before"] += outcome.after > before
        gone = [m for m in messages if m.kind != SUMMARY and m not in outcome.messages]
        unread = [m for m in gone if m.role == "user" and (m.content or "")[:20] not in text]
        found["prompts dropped unread"] += sum(m.kind == "normal" for m in unread)
    for name, count in found.items():
        print(f"{name:28} {count:>8,}")
    share = found["... and summarised them"] / max(1, found["dropped messages"])
    print(f"{'summarised when it mattered':28} {share:>8.1%}   (Brute: 6.5%)")
    print(f"{'seconds':28} {time.monotonic() - started:>8.1f}")
    faults = ("earlier summaries lost", "invalid requests", "larger than before")
    return sum(found[name] for name in (*faults, "prompts dropped unread"))


if __name__ == "__main__":
    sys.exit(min(1, main(*(int(value) for value in sys.argv[1:]))))
