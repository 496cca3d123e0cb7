"""Kill a real worker with SIGKILL at every statement of every kind of turn, and see what is left.

    python -m tests.durability.kill_matrix --database URL --kills 1000 --seed 7

A dry run counts the points of each shape of turn: every statement, every commit, every place
in the model and the tools. Each point is then a kill, on a new chat and on one with a history
of kills; the rest are kills at a random time. After each, in a new process, the turn is either
left behind by the next prompt, continued, or given again with its idempotency key.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.durability.forks import Child, call, fork
from tests.durability.harness import expire, prepared

SIDE_BY_SIDE = 6
# A chat is checked whole after each kill, so it must not grow without end.
KILLS_PER_CHAT = 12
PROMPT, CONTINUE, KEY = "prompt", "continue", "key"
AFTERWARDS = (PROMPT, CONTINUE, KEY)
KINDS = ("losses", "duplicates", "invalid", "broken")


@dataclass
class Case:
    """One kill: where, in what, and how the session goes on."""

    shape: str
    fresh: bool
    point: int
    afterwards: str
    # Seconds after which it is killed, in place of a point.
    after: float | None = None
    real_takeover: bool = False
    instance: str = ""
    name: str = ""

    @property
    def key(self) -> str | None:
        return f"key-{self.name}" if self.afterwards == KEY else None


@dataclass
class Tally:
    """What came of the kills, by phase."""

    kills: Counter[str] = field(default_factory=Counter)
    found: dict[str, Counter[str]] = field(default_factory=dict)
    survived: int = 0
    takeovers: int = 0
    details: list[str] = field(default_factory=list)

    def add(self, case: Case, phase: str, outcome: dict[str, Any]) -> None:
        """Count one kill."""
        self.kills[phase] += 1
        self.takeovers += case.real_takeover
        for kind in KINDS:
            self.found.setdefault(phase, Counter())[kind] += len(outcome[kind])
            for detail in outcome[kind]:
                where = f"{case.instance} {case.name} {case.shape} then {case.afterwards}"
                self.details.append(f"{kind}: {detail} [{outcome['died']}; {where}]")

    @property
    def failures(self) -> int:
        return sum(sum(counter.values()) for counter in self.found.values())

    def lines(self) -> list[str]:
        """Give the table."""
        head = f"{'killed':<58}{'kills':>7}" + "".join(f"{kind:>12}" for kind in KINDS)
        rows = [head]
        for phase in sorted(self.kills, key=_order):
            rows.append(_row(phase, self.kills[phase], self.found[phase]))
        total: Counter[str] = Counter()
        for counter in self.found.values():
            total.update(counter)
        return [*rows, _row("total", sum(self.kills.values()), total)]


def _row(name: str, kills: int, found: Counter[str]) -> str:
    return f"{name:<58}{kills:>7}" + "".join(f"{found[kind]:>12}" for kind in KINDS)


def _order(phase: str) -> int:
    from tests.durability.points import PHASES

    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def count_points(shape: str) -> dict[str, Any]:
    """Run turns of a shape to their end: how many points a new chat has, and an old one."""
    from tests.durability import workers
    from tests.durability.points import armed

    counts, seconds = [], 0.0
    for number in range(2):
        with armed() as points:
            began = time.monotonic()
            workers.run(f"dry-{shape}", f"p{number}", shape)
            seconds = time.monotonic() - began
            counts.append(len(points.labels))
    return {"fresh": counts[0], "used": counts[1], "seconds": seconds}


def victim(case: dict[str, Any]) -> str:
    """Run the turn that is killed; give what was reached if it was not."""
    from tests.durability import workers
    from tests.durability.points import armed, die

    this = Case(**case)
    with armed(this.point, die if this.after is None else None):
        workers.run(this.instance, this.name, this.shape, key=this.key)
    return "survived"


def check(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Go on with each session as its case says, and check it."""
    return [_check(Case(**case)) for case in cases]


def _check(case: Case) -> dict[str, Any]:
    from tests.durability import workers
    from tests.durability.verify import findings, settled_by

    if not case.real_takeover:
        expire(case.instance)
    wrong: list[str] = []
    try:
        before = settled_by(case.instance, case.name)
        if case.afterwards == CONTINUE:
            wrong += _continue(case, before)
        elif case.afterwards == KEY:
            _expect(wrong, case.name, _again(case))
        _expect(
            wrong, f"{case.name}-next", workers.run(case.instance, f"{case.name}-next", "plain")
        )
        found = asdict(findings(case.instance))
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
        found = {kind: [] for kind in KINDS}
    found["broken"] += wrong
    return found


def _continue(case: Case, before: dict[str, Any]) -> list[str]:
    from nexo_django.exceptions import NothingToContinue, SessionNotFound
    from tests.durability import workers

    wrong: list[str] = []
    try:
        content = workers.go_on(case.instance)
    except (NothingToContinue, SessionNotFound) as error:
        if before["stored"] and before["status"] != "done":
            wrong.append(f"{type(error).__name__} for a turn that was {before['status']}")
        return wrong
    if not before["stored"]:
        return [f"continued a turn that was not stored: {content!r}"]
    _expect(wrong, case.name, content)
    return wrong


def _again(case: Case) -> str:
    from tests.durability import workers

    return workers.run(case.instance, case.name, case.shape, key=case.key)


def _expect(wrong: list[str], name: str, content: str) -> None:
    from tests.durability.workers import answer

    if content != answer(name):
        wrong.append(f"{name} got {content!r}")


def plan(
    points: dict[str, dict[str, Any]], kills: int, dice: random.Random, timed: int = 5
) -> list[Case]:
    """Choose the cases: every point in turn, then again with another way to go on.

    Each `timed`th is a kill at a random time.
    """
    every = [
        (shape, fresh, point)
        for shape, counts in points.items()
        for fresh in (True, False)
        for point in range(1, counts["fresh" if fresh else "used"] + 1)
    ]
    dice.shuffle(every)
    cases = []
    for number in range(kills):
        shape, fresh, point = every[number % len(every)]
        # Each round of all the points goes on in another way.
        afterwards = AFTERWARDS[(number + number // len(every)) % len(AFTERWARDS)]
        case = Case(shape, fresh, point, afterwards)
        if timed and number % timed == timed - 1:
            case.after, case.point = dice.uniform(0, points[shape]["seconds"] * 1.2), 0
        case.real_takeover = number % 100 == 50
        cases.append(case)
    return cases


class Chats:
    """Hands out sessions: new ones, and old ones that are not at work."""

    def __init__(self) -> None:
        self.made = 0
        self.used: list[tuple[str, int]] = []

    def take(self, fresh: bool) -> tuple[str, int]:
        if not fresh and self.used:
            return self.used.pop(0)
        self.made += 1
        return f"kill-{self.made}", 0

    def give_back(self, instance: str, kills: int) -> None:
        if kills < KILLS_PER_CHAT:
            self.used.append((instance, kills))


def kill_all(cases: list[Case], tally: Tally) -> None:
    """Kill a few side by side, then check those, and so on."""
    chats = Chats()
    for start in range(0, len(cases), SIDE_BY_SIDE):
        batch = cases[start : start + SIDE_BY_SIDE]
        kills = []
        for case in batch:
            # After another turn of its shape it compacts; after others it may not.
            case.instance, count = chats.take(case.fresh or case.shape == "squeeze")
            case.name = f"p{count}"
            kills.append(count)
        pairs = zip(batch, kills, strict=True)
        if new := [(case.instance, case.shape) for case, n in pairs if not (n or case.fresh)]:
            call(_begin, new)
        died = _kill(batch)
        for case, outcome in zip(batch, _check_all(batch), strict=True):
            if died[case.instance] is None:
                tally.survived += 1
                phase, outcome["died"] = "not at all: the turn was over", "survived"
            else:
                phase, outcome["died"] = died[case.instance]
            tally.add(case, phase, outcome)
        for case, count in zip(batch, kills, strict=True):
            chats.give_back(case.instance, count + 1)


def _begin(chats: list[tuple[str, str]]) -> None:
    """Give sessions that should have a history one."""
    from tests.durability import workers

    for instance, shape in chats:
        workers.run(instance, "first", shape)


def _check_all(batch: list[Case]) -> list[dict[str, Any]]:
    halves = [batch[::2], batch[1::2]]
    children = [fork(check, [asdict(case) for case in half]) for half in halves]
    first, second = (child.wait() for child in children)
    outcomes: list[dict[str, Any]] = [{}] * len(batch)
    outcomes[::2], outcomes[1::2] = first, second
    return outcomes


def _kill(batch: list[Case]) -> dict[str, tuple[str, str] | None]:
    began = time.monotonic()
    children = {case.instance: fork(victim, asdict(case)) for case in batch}
    _kill_by_time(batch, children, began)
    died: dict[str, tuple[str, str] | None] = {}
    for case in batch:
        children[case.instance].wait()
        killed = children[case.instance].killed
        died[case.instance] = _place(case) if killed else None
    return died


def _kill_by_time(batch: list[Case], children: dict[str, Child], began: float) -> None:
    timed = sorted((c for c in batch if c.after is not None), key=lambda c: c.after or 0)
    for case in timed:
        time.sleep(max(0.0, began + (case.after or 0) - time.monotonic()))
        children[case.instance].kill()


def _place(case: Case) -> tuple[str, str]:
    from tests.durability import journal

    if case.after is not None:
        return "at a random time", f"after {case.after:.3f} s"
    last = journal.read(case.instance, "died")[-1]
    return last["phase"], last["label"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", help="a server's URL; without it a SQLite file")
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began, tally = time.monotonic(), Tally()
    with prepared(options.database, lease_seconds=2, turn_wait=60) as url:
        from tests.durability.workers import MATRIX

        points = {shape: call(count_points, shape) for shape in MATRIX}
        total = sum(counts["fresh"] + counts["used"] for counts in points.values())
        kind = url.partition(":")[0]
        print(f"{kind}, seed {options.seed}: {total} points in {len(points)} shapes of turns")
        kill_all(plan(points, options.kills, random.Random(options.seed)), tally)
    print("\n".join(tally.lines()))
    for detail in tally.details[:40]:
        print(detail)
    seconds = time.monotonic() - began
    print(
        f"{sum(tally.kills.values()) - tally.survived} kills, {tally.survived} turns over before "
        f"theirs, {tally.takeovers} leases waited for, {tally.failures} failures, {seconds:.0f} s"
    )
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
