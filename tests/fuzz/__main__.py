"""The long run: the property tests with many examples, the ladder, the timings, a long task.

`python -m tests.fuzz [examples]`; NEXO_FUZZ says the same. The default of 10,000 takes about
half an hour on a machine that does nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROPERTIES = ("tests/test_truncation.py", "tests/test_tokens.py", "tests/compaction")


def main(*arguments: str) -> int:
    """Run everything and say whether anything failed."""
    wanted = arguments[0] if arguments else os.environ.get("NEXO_FUZZ", "10000")
    os.environ["NEXO_FUZZ"] = str(int(wanted))
    failed = pytest.main([*PROPERTIES, "--quiet", "--timeout=0"])
    # Not before: pytest wants to be the first to import what these do.
    from tests.fuzz import ladder, truncation

    faults = ladder.main(min(20_000, 2 * int(wanted)))
    truncation.main()
    # A process of its own: it makes a database.
    long_task = subprocess.run([sys.executable, "-m", "tests.fuzz.long_run"], check=False)
    return int(bool(failed or faults or long_task.returncode))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
