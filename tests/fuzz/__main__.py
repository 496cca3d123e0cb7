"""The long run: the property tests with many examples, then the ladder and the timings.

`python -m tests.fuzz [examples]`; NEXO_FUZZ says the same. The default of 10,000 takes hours.
"""

from __future__ import annotations

import os
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
    return int(bool(failed or faults))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
