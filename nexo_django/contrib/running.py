"""Turns that requests start: they run in the pool, and end when they are done, not when the
client leaves."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from nexo_django.connections import in_test_transaction
from nexo_django.contrib.reading import Source
from nexo_django.contrib.relay import Relay
from nexo_django.exceptions import NexoError, SessionBusy
from nexo_django.messages import TOOL
from nexo_django.pool import submit
from nexo_django.session import Session
from nexo_django.turn import Run

logger = logging.getLogger(__name__)

# A client that saw `done` may come before the lease is given back.
WAIT = 1.0


@dataclass(frozen=True)
class Started:
    """A turn whose prompt is stored; `position` is the one before what it adds.

    `outcome` has what the turn raised, where it runs in this process.
    """

    source: Source
    turn: int
    position: int
    outcome: Future[Any] | None = None


def start(run: Run) -> Started:
    """Start a turn, and return as soon as its prompt is stored.

    Raises what begin raises. The same key and prompt again give the turn that runs.
    """
    task = _Task(run)
    future = None
    if in_test_transaction():
        # Another thread would not see the test's rows.
        task()
    else:
        future = submit(task)
    try:
        return replace(task.begun.result(), outcome=future)
    except SessionBusy:
        if (found := _attached(run)) is None:
            raise
        return found


class _Task:
    """One turn in a thread of the pool."""

    def __init__(self, run: Run) -> None:
        self.run = replace(run, begun=self._begun)
        self.begun: Future[Started] = Future()
        self.relay = Relay()

    def __call__(self) -> BaseException | None:
        """Run the turn; what it raised is given, since nobody may be there to catch it."""
        try:
            self.run(self.relay)
        except BaseException as error:
            self._failed(error)
            if not isinstance(error, Exception):
                raise
            return error
        finally:
            self.relay.close()
        return None

    def _begun(self, turn: Any) -> None:
        source = Source(turn.alias, turn.row.chat_id)
        if turn.lease is None:
            # The key's turn was finished before.
            position = source.begin_of(turn.number)
        else:
            self.relay.begin(turn)
            position = _before(turn)
        self.begun.set_result(Started(source, turn.number, position))

    def _failed(self, error: BaseException) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
        elif isinstance(error, NexoError):
            logger.warning("session=%r turn failed: %s", self.run.session, error)
        else:
            logger.error("session=%r turn failed", self.run.session, exc_info=error)


def _before(turn: Any) -> int:
    said = [m.position or 0 for m in turn.messages if m.role != TOOL]
    return max(said[-1] - 1, 0) if said else 0


def _attached(run: Run) -> Started | None:
    """Find the running turn of the same key and prompt: its first answer was lost."""
    session: Session = run.session
    source = Source.find(session.agent.name, session.instance_id)
    if source is None or run.request.key is None:
        return None
    turn = source.keyed(run.request.key, run.request.fingerprint)
    return None if turn is None else Started(source, turn, source.begin_of(turn))
