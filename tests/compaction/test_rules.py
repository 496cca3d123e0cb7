"""The table of rules is whole, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = (Path(__file__).parent / "rules.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+|[IT]\d+) \| (.+?) \| (.+) \|$", TABLE, re.MULTILINE)


def test_no_rule_is_missing():
    wanted = [str(number) for number in range(1, 68)]
    wanted += [f"I{number}" for number in range(1, 27)] + [f"T{number}" for number in range(1, 12)]
    assert [row[0] for row in ROWS] == wanted


def test_every_test_that_is_named_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE)
    assert len(named) > 80
    for path, name in set(named):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{path} has no {name}"


def test_what_names_no_test_gives_a_reason():
    assert all("::" in held or len(held) > 40 for _, _, held in ROWS)
