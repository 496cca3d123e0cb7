"""Turns that requests start: they end when they are done, not when the client leaves.

They run in this process's pool, or in a worker where NEXO["BACKGROUND"] says so.
"""

from __future__ import annotations

import importlib
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from nexo_django import conf
from nexo_django.connections import in_test_transaction, release_thread
from nexo_django.contrib.reading import Source, State
from nexo_django.contrib.relay import Relay
from nexo_django.exceptions import (
    KeyConflict,
    NexoError,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
)
from nexo_django.messages import TOOL
from nexo_django.pool import submit
from nexo_django.session import Session
from nexo_django.stores.base import OUTCOMES
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

    def begun(self) -> Started:
        """Give this: it has begun."""
        return self


@dataclass(frozen=True)
class Queued:
    """A turn that a worker will begin: the one with that key, or the one that goes on."""

    session: Session
    key: str | None = None
    fingerprint: str | None = None
    # How the turn stood that is to go on.
    before: State | None = None

    def begun(self) -> Started | None:
        """Give the turn if it has begun by now; asks the database."""
        source = Source.find(self.session.agent.name, self.session.instance_id)
        if source is None:
            return None
        if self.key is not None:
            turn = source.keyed(self.key, self.fingerprint)
            return None if turn is None else Started(source, turn, source.begin_of(turn))
        state = source.state()
        if state is None or (self.before is not None and state.same(self.before)):
            return None
        return Started(source, state.turn, source.said_before(state.turn))


def prompt(session: Session, text: str, key: Any, files: Sequence[Any]) -> Started | Queued:
    """Start a turn with a prompt; raises TypeError or ValueError for what is none.

    Files are kept with the prompt, which a queue does not carry: that turn runs here.
    """
    background = None if files else conf.get("BACKGROUND")
    if background is not None and key is None:
        key = uuid.uuid4()
    run = session._run(text, None, key, WAIT, attachments=files)
    return start(run) if background is None else _queue(background, run)


def go_on(session: Session) -> Started | Queued:
    """Go on with the session's turn."""
    run = session._continuation(None, WAIT)
    background = conf.get("BACKGROUND")
    return start(run) if background is None else _queue(background, run)


def start(run: Run) -> Started:
    """Start a turn here, and return as soon as its prompt is stored.

    Raises what begin raises. The same key and prompt again give the turn that runs.
    """
    task = _Task(run)
    future = None
    # The turn's thread needs a connection; those of requests that wait for theirs to begin must
    # not be all that a pool has.
    release_thread()
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
        self.relay.begin(turn)
        # One that was finished before is told from its beginning.
        position = source.begin_of(turn.number) if turn.lease is None else _before(turn)
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
    if run.request.key is None:
        return None
    return Queued(run.session, run.request.key, run.request.fingerprint).begun()


def _queue(background: str, run: Run) -> Started | Queued:
    """Hand a turn to a worker; what would be refused here is refused before."""
    session, request = run.session, run.request
    verbs = importlib.import_module(f"nexo_django.contrib.{background}")
    address = (session.agent.name, session.instance_id)
    source = Source.find(*address)
    state = None if source is None else source.state()
    if request.prompt is None:
        if source is None:
            raise SessionNotFound
        if state is None or state.status in OUTCOMES:
            raise NothingToContinue
        _refuse_busy(state)
        verbs.continue_later(*address, on_commit=False)
        return Queued(session, before=state)
    queued = Queued(session, request.key, request.fingerprint)
    if found := queued.begun():
        return found
    if source is not None and source.keyed(str(request.key)) is not None:
        raise KeyConflict
    _refuse_busy(state)
    verbs.prompt_later(*address, request.prompt.content, key=request.key, on_commit=False)
    return queued


def _refuse_busy(state: State | None) -> None:
    if state is not None and state.running:
        raise SessionBusy(retry_after=state.leased_for)
