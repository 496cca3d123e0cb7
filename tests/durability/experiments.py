"""What durability means, as experiments with figures; each exits with 1 when something is wrong.

python -m tests.durability.experiments crowd creation --database URL
python -m tests.durability.experiments all --database URL
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tests.durability import crowds, faults, pgbouncer, redelivery, scratch, waiting
from tests.durability.forks import call
from tests.durability.harness import prepared
from tests.durability.report import Report

NAMES = (
    "crowd",
    "creation",
    "siblings",
    "frozen",
    "waiting",
    "redelivery",
    "brokers",
    "faults",
    "pgbouncer",
)
# What the settings of an experiment differ in; see tests/durability/settings.py.
SETTINGS: dict[str, dict[str, Any]] = {
    "frozen": {"lease_seconds": 1},
    "brokers": {"lease_seconds": 8, "turn_wait": 300},
    "faults": {"turn_wait": 60},
}


def run(name: str, options: argparse.Namespace) -> int:
    """Run one experiment on a database of its own, and give the number of failures."""
    report, began = Report(), time.monotonic()
    vendor = scratch.vendor(options.database or "")
    if name in ("waiting", "pgbouncer") and vendor != "postgresql":
        report.say(f"{name}: only on PostgreSQL")
        return 0
    settings = dict(SETTINGS.get(name, {}))
    if name == "waiting":
        settings |= {
            "pool": options.connections,
            "max_in_flight": options.turns,
            "model_seconds": options.seconds,
        }
    with prepared(options.database, **settings) as url:
        _experiment(name, report, url, options)
    report.say(f"{name} on {vendor}: {len(report.failures)} failures, {_since(began)}")
    return len(report.failures)


def _experiment(name: str, report: Report, url: str, options: argparse.Namespace) -> None:
    if name == "crowd":
        crowds.crowd(report, options.processes)
    elif name == "creation":
        crowds.creation(report, options.processes, options.rounds)
    elif name == "siblings":
        crowds.siblings(report)
    elif name == "frozen":
        crowds.frozen(report)
    elif name == "waiting":
        waiting.waiting(report, url, options.turns, options.seconds, options.connections)
    elif name == "redelivery":
        redelivery.redelivery(report, options.processes)
    elif name == "brokers":
        redelivery.brokers(report, *options.brokers)
    elif name == "faults":
        faults.faults(report, url, options.faults, options.seed)
    else:
        pgbouncer.crowd(report, url, options.processes)


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", choices=(*NAMES, "all"))
    parser.add_argument("--database", help="a server's URL; without it a SQLite file")
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="of creation")
    parser.add_argument("--turns", type=int, default=500, help="of waiting")
    parser.add_argument("--seconds", type=float, default=2.0, help="that waiting's model takes")
    parser.add_argument("--connections", type=int, default=20, help="that waiting may use")
    parser.add_argument("--faults", type=int, default=0, help="how many; 0 for every one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--brokers", nargs="+", choices=redelivery.BROKERS, default=list(redelivery.BROKERS)
    )
    options = parser.parse_args(arguments)
    names = NAMES if "all" in options.names else options.names
    # Each in a process of its own: Django's settings are read once.
    failures = [call(run, name, options) for name in names]
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main())
