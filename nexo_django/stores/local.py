"""What the stores without a database share: a chat's turns, keys, repair and waiting.

The rules are the database store's; a subclass says where the contents are and who owns them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from nexo_django import conf
from nexo_django.decisions import AWAITING, Decision, PendingCall
from nexo_django.exceptions import (
    KeyConflict,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
    brief,
)
from nexo_django.media import Upload
from nexo_django.messages import Message, ToolCall, Usage
from nexo_django.sanitize import clean_message
from nexo_django.stores import local_decisions
from nexo_django.stores.attached import Attached, found, kept
from nexo_django.stores.base import FAILED, OUTCOMES, REPLY_STATUSES, RUNNING, STOPPED, TurnRequest
from nexo_django.stores.contents import Contents, Turn, total
from nexo_django.stores.held import Held
from nexo_django.stores.local_decisions import Decisions
from nexo_django.stores.local_turn import LocalTurn, private, replace
from nexo_django.stores.parts import Part, history, undone
from nexo_django.stores.parts import as_of as seen_at
from nexo_django.transcript import interrupted_result


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
                    replace(held, before)
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


def _close_calls(held: Held, slots: Iterable[tuple[ToolCall, int]]) -> None:
    for call, at in list(slots):
        waited = None
        if held.contents.turns and (call.id, at) not in held.contents.turns[-1].started:
            waited = local_decisions.closed(call, at, held.contents, held.decisions)
        result = held.contents.place(waited or interrupted_result(call))
        held.message(result)
        held.contents.take(result)
