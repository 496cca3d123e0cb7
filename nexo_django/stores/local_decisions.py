"""Calls that wait for a decision, in the stores without a database.

A turn names each call that waits by a token. Decisions are kept apart by those, so that one
can be recorded while another process holds the chat's lease.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nexo_django.decisions import (
    AWAITING,
    DECIDES,
    VERBS,
    Decision,
    PendingCall,
    closed_result,
    waiting,
)
from nexo_django.messages import Message, ToolCall
from nexo_django.stores.jsonl_file import JSONLFile
from nexo_django.stores.jsonl_lock import FileLock
from nexo_django.stores.refusals import undecidable

if TYPE_CHECKING:
    from nexo_django.stores.contents import Contents

# For how long to wait for another that decides: it writes one line.
LONGEST_WAIT = 30.0


@dataclass(frozen=True)
class Wait:
    """What a call waits for; the token names it for ever, wherever a compaction puts it."""

    status: str
    token: str = field(default_factory=lambda: uuid.uuid4().hex)


class Decisions(Protocol):
    """What was decided on the calls of a chat, by their tokens."""

    def locked(self) -> AbstractContextManager[Any]:
        """Keep others from deciding."""

    def all(self) -> Mapping[str, Decision]:
        """Give every decision."""

    def put(self, token: str, made: Decision) -> None:
        """Record a decision, inside `locked`."""


@dataclass
class HeldDecisions:
    """Decisions in memory, behind the lock of the chats there."""

    lock: AbstractContextManager[Any]
    made: dict[str, Decision] = field(default_factory=dict)

    def locked(self) -> AbstractContextManager[Any]:
        """Keep others from deciding."""
        return self.lock

    def all(self) -> Mapping[str, Decision]:
        """Give every decision."""
        return dict(self.made)

    def put(self, token: str, made: Decision) -> None:
        """Record a decision."""
        self.made[token] = made


class DecisionFile:
    """Decisions in a file beside the log, a line each, with a lock of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = JSONLFile(path, _line)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from deciding, in other processes too."""
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        lock.acquire(LONGEST_WAIT)
        try:
            yield
        finally:
            lock.release()

    def all(self) -> Mapping[str, Decision]:
        """Give every decision."""
        return dict(self._file.read())

    def put(self, token: str, made: Decision) -> None:
        """Record a decision; it is on the disk when this returns."""
        at = None if made.at is None else made.at.isoformat()
        record = {"call": token, "verb": made.verb, "by": made.by, "text": made.text, "at": at}
        self._file.open()
        try:
            self._file.append(record)
        finally:
            self._file.close()


def wait_of(contents: Contents, call_id: str) -> Wait | None:
    """Give what a call of the last turn's last step waits for, or waited."""
    if not contents.turns:
        return None
    found = [(at, wait) for (id_, at), wait in contents.turns[-1].waits.items() if id_ == call_id]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def open_waits(contents: Contents) -> Iterator[tuple[ToolCall, Wait]]:
    """Give the calls without a result that wait or waited, in call order."""
    waits = contents.turns[-1].waits if contents.turns else {}
    for call, at in contents.slots:
        if (call.id, at) in waits:
            yield call, waits[call.id, at]


def pending(contents: Contents, made: Mapping[str, Decision]) -> list[PendingCall]:
    """Give the calls that nobody decided on."""
    return [
        waiting(call, wait.status) for call, wait in open_waits(contents) if wait.token not in made
    ]


def record(contents: Contents, decisions: Decisions, call_id: str, made: Decision) -> PendingCall:
    """Record the one decision on a call that waits, inside `locked`."""
    before = decisions.all()
    wait = wait_of(contents, call_id)
    for call, each in open_waits(contents):
        free = each.token not in before and DECIDES[made.verb] == each.status
        if call.id == call_id and free and not _began(contents, call):
            stamped = Decision(made.verb, made.by, made.text, datetime.now(UTC))
            decisions.put(each.token, stamped)
            return waiting(call, each.status)
    told = None if wait is None else before.get(wait.token)
    listed = pending(contents, before)
    status = next((call.status for call in listed if call.id == call_id), None)
    raise undecidable(call_id, made, status, told, listed)


def closed(call: ToolCall, at: int, contents: Contents, decisions: Decisions) -> Message | None:
    """Make the result of a call that waited and that the conversation goes on without."""
    wait = contents.turns[-1].waits.get((call.id, at)) if contents.turns else None
    if wait is None:
        return None
    return closed_result(call, wait.status, decisions.all().get(wait.token))


def _began(contents: Contents, call: ToolCall) -> bool:
    places = {at for each, at in contents.slots if each.id == call.id}
    return any((call.id, at) in contents.turns[-1].started for at in places)


def _line(data: dict[str, Any]) -> tuple[str, Decision]:
    """Read a line of the file; raises for one that was not written here."""
    if data["verb"] not in VERBS:
        raise ValueError("This is no decision.")
    at = None if data.get("at") is None else datetime.fromisoformat(data["at"])
    return str(data["call"]), Decision(data["verb"], str(data["by"]), str(data["text"]), at)


def parsed(waits: Any) -> dict[tuple[str, int], Wait]:
    """Read what a turn's line says of its calls that wait."""
    made = {(str(i), int(at)): Wait(status, str(token)) for i, at, status, token in waits}
    if any(wait.status not in AWAITING for wait in made.values()):
        raise ValueError("This is no line about a turn.")
    return made


def written(waits: Mapping[tuple[str, int], Wait]) -> list[list[Any]]:
    """Give what `parsed` reads."""
    return [[i, at, wait.status, wait.token] for (i, at), wait in sorted(waits.items(), key=_place)]


def _place(item: tuple[tuple[str, int], Wait]) -> tuple[int, str]:
    return item[0][1], item[0][0]
