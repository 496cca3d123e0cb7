"""A turn under way in a store without a database: the recorder of its messages, behind the lease."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nexo_django.decisions import AWAITING, Decision, PendingCall, status_of
from nexo_django.exceptions import LeaseLost, StoreFailed, TurnCancelled, brief
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, Message, ToolCall, Usage
from nexo_django.sanitize import clean_message, clean_text, clean_usage
from nexo_django.stores import local_decisions
from nexo_django.stores.attached import intact
from nexo_django.stores.base import DONE, RUNNING
from nexo_django.stores.contents import Contents, Turn, settles
from nexo_django.stores.files import FileStore, OwnedFiles
from nexo_django.stores.held import Held
from nexo_django.stores.local_decisions import Wait
from nexo_django.stores.parts import Part
from nexo_django.transcript import distinct

if TYPE_CHECKING:
    from nexo_django.compaction.change import Change, Spent

logger = logging.getLogger(__name__)


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
        self.view_since = 0 if held is None else made_upto(held)
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
            replace(held, Part(kept, len(kept), held.index))
            self.usage += clean_usage(change.usage)
            self.view_since = made_upto(held)
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


def private(message: Message) -> Message:
    """Give the message with JSON values that a tool may change without changing the store's."""
    raw = message.usage is not None and message.usage.raw
    held = (message.tool_calls, message.parts, message.reasoning, message.extra, raw)
    return copy.deepcopy(message) if any(held) else message


def replace(held: Held, part: Part) -> None:
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


def made_upto(held: Held) -> int:
    """Give the position of the last message that a compaction left."""
    made = held.contents.messages[: held.made]
    return (made[-1].position or 0) if made else 0
