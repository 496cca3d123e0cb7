"""What the stores without a database share: a chat's turns, keys, repair and waiting.

The rules are the database store's; a subclass says where the contents are and who owns them.
"""

from __future__ import annotations

import copy
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nexo_django import conf
from nexo_django.decisions import AWAITING, Decision, PendingCall, status_of
from nexo_django.exceptions import (
    KeyConflict,
    LeaseLost,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
    StoreFailed,
    TurnCancelled,
    brief,
)
from nexo_django.media import Upload
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, Message, ToolCall, Usage
from nexo_django.sanitize import clean_message, clean_text, clean_usage
from nexo_django.stores import local_decisions
from nexo_django.stores.attached import Attached, found, intact, kept
from nexo_django.stores.base import (
    CANCELLED,
    DONE,
    FAILED,
    REPLY_STATUSES,
    RUNNING,
    STOPPED,
    TURN_LIMIT,
    TurnRequest,
)
from nexo_django.stores.contents import Contents, Turn, settles, total
from nexo_django.stores.files import FileStore, OwnedFiles
from nexo_django.stores.held import Held
from nexo_django.stores.local_decisions import Decisions, Wait
from nexo_django.stores.parts import Part, history, undone
from nexo_django.stores.parts import as_of as seen_at
from nexo_django.transcript import distinct, interrupted_result

if TYPE_CHECKING:
    from nexo_django.compaction.change import Change, Spent

logger = logging.getLogger(__name__)

# What a key gives again; every other status means that the turn can go on.
OUTCOMES = (DONE, TURN_LIMIT, CANCELLED)


class LocalTurn:
    """An open turn; also the recorder of its messages."""

    def __init__(self, held: Held | None, turn: Turn, messages: list[Message]) -> None:
        self._held, self._turn = held, turn
        # Tools append from threads of their own.
        self._lock = threading.RLock() if held is None else held.lock
        self.number, self.key = turn.number, turn.key
        self.status, self.usage = turn.status, turn.usage
        self.messages = messages
        # Answers at later positions reported on the view as it is.
        self.view_since = 0 if held is None else _made_upto(held)
        self.reply = turn.reply if held is None else None
        self._answer = turn.reply
        # The calls that wait when the turn has stopped.
        self.pending: tuple[PendingCall, ...] = ()

    def append(self, message: Message, *, denied: bool = False) -> Message:
        """Commit a message and give it as it was stored."""
        if message.role == SYSTEM:
            return self.set_system(message.content) or message
        value = distinct(clean_message(message))
        with self._lock:
            held = self._owned()
            if value.role == TOOL and held.contents.answered(value.tool_call_id):
                raise StoreFailed(f"The call {brief(value.tool_call_id)} has its result already.")
            stored = held.contents.place(value)
            if self._turn.status == DONE and not settles(stored):
                # The answer before was not the last one.
                self._settle(held, RUNNING)
            held.message(stored)
            held.contents.take(stored)
            self.usage += stored.usage or Usage()
            if stored.role == ASSISTANT:
                self._answer = stored
            if settles(stored):
                self._settle(held, DONE)
            return private(stored)

    @property
    def waits(self) -> dict[str, str]:
        """The calls of the last step that wait, with what they wait for."""
        with self._lock:
            contents, made = self._owned().contents, self.decisions
            asked = local_decisions.open_waits(contents)
            return {call.id: wait.status for call, wait in asked if call.id not in made}

    @property
    def decisions(self) -> dict[str, Decision]:
        """What was decided on the calls of the last step."""
        with self._lock:
            held = self._owned()
            asked = list(local_decisions.open_waits(held.contents))
            made = held.decisions.all() if asked else {}
            return {call.id: made[w.token] for call, w in asked if w.token in made}

    def hold(self, waits: Mapping[str, str]) -> None:
        """Commit that calls wait, and that the turn does, in one line."""
        with self._lock:
            held, before = self._owned(), self._turn.waits
            new = {
                (call.id, at): Wait(waits[call.id])
                for call, at in held.contents.slots
                if call.id in waits and (call.id, at) not in before
            }
            self._turn.waits = {**before, **new}
            try:
                self._settle(held, status_of(waits.values()))
            except BaseException:
                self._turn.waits = before
                raise

    def decided(self) -> dict[str, Decision]:
        """Look what was decided on calls that wait; the turn runs on if there is something."""
        with self._lock:
            held, made = self._owned(), self.decisions
            self.pending = tuple(local_decisions.pending(held.contents, held.decisions.all()))
            if made and self._turn.status != RUNNING:
                self._settle(held, RUNNING)
            return made

    def set_system(self, text: str | None) -> Message | None:
        """Make this the one system message, or take it away."""
        with self._lock:
            held = self._owned()
            system = Message(SYSTEM, clean_text(text), position=0) if text else None
            held.contents.system = system
            return system

    def start_call(self, call: ToolCall) -> None:
        """Commit that a tool call starts to run; a call that has started does not again."""
        with self._lock:
            held, marks = self._owned(), self._turn.started
            mark = next(((c.id, at) for c, at in held.contents.slots if c.id == call.id), None)
            if mark is None:
                return
            if mark in marks:
                raise StoreFailed(f"The call {brief(call.id)} has been started before.")
            held.started(self._turn, mark)
            marks.add(mark)

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn was cancelled or lost its lease."""
        if self._owned().cancelled(self.number):
            raise TurnCancelled(f"Turn {self.number} was cancelled.")

    def compacted(self, change: Change) -> list[Message]:
        """Commit a compaction and give the view as it is stored; the history keeps it all."""
        kept = [clean_message(message) for message in change.view if message.role != SYSTEM]
        with self._lock:
            held = self._owned()
            _replace(held, Part(kept, len(kept), held.index))
            self.usage += clean_usage(change.usage)
            self.view_since = _made_upto(held)
            if self._turn.status == DONE:
                self._settle(held, DONE)
            return [private(message) for message in held.contents.view(keep_open=True)]

    def compaction_failed(self, spent: Spent) -> None:
        """Add what an attempt to compact used that changed nothing."""
        with self._lock:
            self._owned()
            self.usage += clean_usage(spent.usage)

    def keep_output(self, text: str, call: ToolCall) -> str | None:
        """Keep the whole text of a result that is cut, and give the id to read it by."""
        try:
            with self._lock:
                return self._owned().outputs.keep(text)
        except OSError as error:
            logger.warning("turn=%s output not kept: %s", self.number, type(error).__name__)
            return None

    def output(self, output_id: str) -> str | None:
        """Give a kept text of this chat, None when there is none of that id or it expired."""
        return None if self._held is None else self._held.outputs.read(output_id)

    def attachments(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Give attached files of this chat by their parts' ids, without those that are gone."""
        held = self._held
        return {} if held is None else intact(held.attached, held.contents.messages, ids)

    @property
    def files(self) -> FileStore:
        """The files of the chat, which are kept until it is deleted."""
        return OwnedFiles(self._owned().files, self._lock, self._owned)

    def finish(self, status: str, error: str = "") -> None:
        """Commit how the turn ended; an answer without calls has committed DONE itself."""
        with self._lock:
            settled = self._turn.status == DONE or self._turn.status == status in AWAITING
            if not settled and self.number:
                self._settle(self._owned(), status, error)

    def close(self) -> None:
        """Give the lease back, as the last thing; may be called twice and never raises."""
        if self._held is not None:
            self._held.release()

    def __del__(self) -> None:
        # A turn that was dropped would keep its chat busy for as long as the process lives.
        self.close()

    def _settle(self, held: Held, status: str, error: str = "") -> None:
        before = (self._turn.status, self._turn.error, self._turn.usage, self._turn.reply)
        self._turn.status, self._turn.error, self._turn.usage = status, error, self.usage
        self._turn.reply = self._answer
        try:
            held.turn(self._turn)
        except BaseException:
            turn = self._turn
            turn.status, turn.error, turn.usage, turn.reply = before
            raise
        self.status = status

    def _owned(self) -> Held:
        if self._held is None or not self._held.owned():
            raise LeaseLost(f"Turn {self.number} no longer holds its session; nothing was written.")
        return self._held


class LocalChat(ABC):
    """The chat of one agent and instance, in a store without a database."""

    @abstractmethod
    def hold(self, wait: float, *, make: bool) -> Held:
        """Take the lease, or raise SessionBusy after `wait` seconds.

        Without `make`, raise SessionNotFound for a chat that is not stored.
        """

    @abstractmethod
    def read(self) -> Contents:
        """Give what is stored now, without the lease and without changing anything."""

    @property
    @abstractmethod
    def files(self) -> Attached:
        """Where the chat's attached files are kept."""

    name: tuple[str, str]

    @property
    @abstractmethod
    def decisions(self) -> Decisions:
        """Where decisions on the chat's calls are kept."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the chat is stored."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions, without changing anything."""

    def begin(self, request: TurnRequest) -> LocalTurn:
        """Take the lease and commit the prompt; see StoredChat."""
        wait = conf.get("TURN_WAIT") if request.wait is None else request.wait
        make = request.prompt is not None
        try:
            held = self.hold(0, make=make)
        except SessionBusy:
            # An outcome needs no lease.
            if request.key is not None and (found := _outcome(self.read(), request)):
                return found
            held = self.hold(wait, make=make)
        try:
            with held.lock:
                return _begun(held, request)
        except BaseException:
            held.release()
            raise

    def maintain(self, wait: float | None = None) -> LocalTurn:
        """Take the lease without a turn, to compact; see StoredChat."""
        held = self.hold(conf.get("TURN_WAIT") if wait is None else wait, make=False)
        with held.lock:
            # What may still be continued stays open.
            return LocalTurn(held, Turn(0), held.contents.view(keep_open=True))

    def ended(self, key: str) -> LocalTurn | None:
        """Give the turn of that key if it ended or waits for a decision."""
        turn = self.read().turn(key)
        if turn is None or turn.status not in REPLY_STATUSES:
            return None
        found = LocalTurn(None, turn, [])
        found.pending = tuple(self.pending()) if turn.status in AWAITING else ()
        return found

    def pending(self) -> list[PendingCall]:
        """Give the calls that wait for a decision, in call order; [] without a chat."""
        contents = self._undecided()
        return local_decisions.pending(contents, self.decisions.all())

    def decide(self, call_id: str, made: Decision) -> PendingCall:
        """Record the one decision on a call that waits; see StoredChat."""
        if not self.exists():
            raise missing(*self.name)
        with self.decisions.locked():
            return local_decisions.record(self._undecided(), self.decisions, call_id, made)

    def _undecided(self) -> Contents:
        """Give what is stored, without calls that wait where the last turn is finished."""
        contents = self.read()
        finished = bool(contents.turns) and contents.turns[-1].status in OUTCOMES
        return Contents() if finished else contents

    def view(self, as_of: int | None = None) -> list[Message]:
        """Give the messages the model would see, or saw when `as_of` was the last position."""
        contents = self.read()
        if as_of is not None:
            contents = Contents(system=contents.system)
            contents.add(seen_at(self.parts(), as_of))
        # The caller may change it.
        return [private(message) for message in contents.view()]

    def attached(self, attachment_id: str) -> Upload | None:
        """Give an attached file of the chat, None when there is none of that id."""
        return found(self.files, history(self.parts()), attachment_id)

    def undo_compaction(self) -> bool:
        """Go back to the view before the last compaction; False when there was none."""
        try:
            held = self.hold(0, make=False)
        except SessionNotFound:
            return False
        try:
            with held.lock:
                before = undone(held.parts())
                if before is not None:
                    _replace(held, before)
                return before is not None
        finally:
            held.release()

    def history(self) -> Iterator[Message]:
        """Give every message that was kept, compacted ones too, in order."""
        return (private(message) for message in history(self.parts()))

    def usage(self) -> Usage:
        """Give the sum of what the chat's model calls used."""
        return total(self.history())


def missing(agent_name: str, instance_id: str) -> SessionNotFound:
    """Make the error for a chat that is not stored."""
    return SessionNotFound(
        f"There is no session of {brief(agent_name)} for {brief(instance_id)}; a prompt makes it."
    )


def private(message: Message) -> Message:
    """Give the message with JSON values that a tool may change without changing the store's."""
    raw = message.usage is not None and message.usage.raw
    held = (message.tool_calls, message.parts, message.reasoning, message.extra, raw)
    return copy.deepcopy(message) if any(held) else message


def _begun(held: Held, request: TurnRequest) -> LocalTurn:
    if found := _outcome(held.contents, request):
        held.release()
        return found
    if request.prompt is None or held.contents.turn(request.key):
        return continued(held, request)
    with kept(held.attached, request.files):
        return started(held, [request.prompt], request.key, request.fingerprint)


def _outcome(contents: Contents, request: TurnRequest) -> LocalTurn | None:
    """Give the key's turn if it was finished; refuse the key if it had another prompt."""
    turn = contents.turn(request.key)
    if turn is None or request.prompt is None:
        return None
    if turn.fingerprint != request.fingerprint:
        raise KeyConflict(
            f"The key {brief(request.key)} was used for turn {turn.number} with another prompt; "
            f"take a new key for a new prompt."
        )
    return LocalTurn(None, turn, []) if turn.status in OUTCOMES else None


def started(
    held: Held, prompts: Iterable[Message], key: str | None = None, fingerprint: str = ""
) -> LocalTurn:
    """Settle what an earlier turn left open, and commit a new turn with its prompt."""
    contents = held.contents
    if contents.turns and contents.turns[-1].waits:
        with held.decisions.locked():
            _close_calls(held, contents.slots)
    _close_calls(held, contents.slots)
    if contents.turns and contents.turns[-1].status not in (*OUTCOMES, FAILED, STOPPED):
        contents.turns[-1].status = STOPPED
        held.turn(contents.turns[-1])
    turn = Turn(contents.turns[-1].number + 1 if contents.turns else 1, key, fingerprint)
    cleaned = [clean_message(message) for message in prompts]
    held.begin(turn, cleaned)
    contents.turns.append(turn)
    contents.start = contents.next
    contents.add(cleaned)
    return LocalTurn(held, turn, contents.view())


def continued(held: Held, request: TurnRequest) -> LocalTurn:
    """Take up the unsettled turn; finished results are kept."""
    contents = held.contents
    last = contents.turns[-1] if contents.turns else None
    turn = last if request.prompt is None else contents.turn(request.key)
    if turn is None or turn.status in OUTCOMES:
        raise NothingToContinue("The session's last turn is finished; prompt() starts another.")
    if turn is not last:
        raise NothingToContinue(
            f"Turn {turn.number} was interrupted and the session went on without it; "
            f"prompt again with a new key."
        )
    began = [(call, at) for call, at in contents.slots if (call.id, at) in turn.started]
    _close_calls(held, [slot for slot in began if slot[0].name not in request.idempotent])
    turn.started = set()
    if turn.status != RUNNING:
        turn.status, turn.error = RUNNING, ""
        held.turn(turn)
    turn.usage, turn.reply = contents.spent(), contents.answer()
    # The tools run calls of this view.
    return LocalTurn(held, turn, [private(m) for m in contents.view(keep_open=True)])


def _replace(held: Held, part: Part) -> None:
    """Begin a part, with the marks of calls that began to run where those are now."""
    contents, new = held.contents, Contents()
    new.add(part.messages)
    last = contents.turns[-1] if contents.turns else Turn(0)
    began = {call.id for call, at in contents.slots if (call.id, at) in last.started}
    # Positions count anew: a later call may have the id and the position of one before.
    marks = {(call.id, at) for call, at in new.slots if call.id in began}
    waited = {call_id: wait for (call_id, _), wait in last.waits.items()}
    waits = {(call.id, at): waited[call.id] for call, at in new.slots if call.id in waited}
    held.replace(part, marks, waits)
    contents.replace(part.messages)
    last.started, last.waits = marks, waits


def _made_upto(held: Held) -> int:
    """Give the position of the last message that a compaction left."""
    made = held.contents.messages[: held.made]
    return (made[-1].position or 0) if made else 0


def _close_calls(held: Held, slots: Iterable[tuple[ToolCall, int]]) -> None:
    for call, at in list(slots):
        waited = None
        if held.contents.turns and (call.id, at) not in held.contents.turns[-1].started:
            waited = local_decisions.closed(call, at, held.contents, held.decisions)
        result = held.contents.place(waited or interrupted_result(call))
        held.message(result)
        held.contents.take(result)
