"""What really happened, in append-only files beside the database: one file a session, a line a fact.

A line is written with one call, so it is whole or not there when the process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# A prompt is about to be given; the model got a request; a tool had its effect; a result, an
# answer was committed; a reply was returned; a turn raised.
ISSUED, REQUEST, EFFECT = "issued", "request", "effect"
RESULT, ANSWER, REPLY, RAISED = "result", "answer", "reply", "raised"
# Compaction asked for a summary.
SUMMARY = "summary"


def folder() -> Path:
    return Path(os.environ["NEXO_TEST_JOURNAL"])


def write(instance: str, kind: str, **facts: Any) -> None:
    """Add a fact."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), **facts}) + "\n"
    file = os.open(folder() / f"{instance}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(instance: str, *kinds: str) -> list[dict[str, Any]]:
    """Give the facts of a session in order, of all kinds or of some."""
    path = folder() / f"{instance}.jsonl"
    facts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [fact for fact in facts if not kinds or fact["kind"] in kinds]


def values(instance: str, kind: str, name: str) -> list[Any]:
    """Give one value of each fact of a kind."""
    return [fact[name] for fact in read(instance, kind)]


def repeated(items: Iterable[str]) -> list[str]:
    """Give what is there more than once."""
    seen: set[str] = set()
    return [item for item in items if item in seen or seen.add(item)]  # type: ignore[func-returns-value]
