"""What a session needs of the place that keeps it; each store keeps these promises its own way.

A turn holds its chat's lease from `begin` to `close`. Every write it makes is committed when
the method returns, and refused with LeaseLost once another has taken the chat over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from nexo_django.compaction.change import Change, Spent
from nexo_django.decisions import AWAITING_ANSWER, AWAITING_APPROVAL, Decision, PendingCall
from nexo_django.media import Upload, is_attachment
from nexo_django.messages import Message, Recorder, ToolCall, Usage
from nexo_django.stores.files import FileStore

RUNNING, DONE, FAILED = "running", "done", "failed"
STOPPED, CANCELLED, TURN_LIMIT = "interrupted", "cancelled", "turn_limit"
TURN_STATUSES = (
    RUNNING,
    DONE,
    FAILED,
    STOPPED,
    CANCELLED,
    TURN_LIMIT,
    AWAITING_APPROVAL,
    AWAITING_ANSWER,
)
# What a turn does not go on from, and a key gives again.
OUTCOMES = (DONE, TURN_LIMIT, CANCELLED)
# What `reply.status` may be.
REPLY_STATUSES = (DONE, AWAITING_APPROVAL, AWAITING_ANSWER, TURN_LIMIT, CANCELLED)


@dataclass(frozen=True)
class TurnRequest:
    """What `begin` is asked for: a new turn with a prompt, or, without one, to go on.

    `wait` is how many seconds to wait for a busy chat; None means the setting TURN_WAIT.
    `idempotent` names the tools that may run again after a kill. `model` is the litellm id
    that the turn will ask. `files` are those that the prompt's parts refer to and that are
    not kept yet: they are kept with the prompt, or neither is.
    """

    prompt: Message | None
    key: str | None = None
    wait: float | None = None
    model: str | None = None
    idempotent: frozenset[str] = field(default_factory=frozenset)
    files: tuple[Upload, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Tell one prompt from another under the same key."""
        if self.prompt is None:
            return ""
        # The same file attached again has another id.
        parts = [
            {**part, "id": ""} if is_attachment(part) else part for part in self.prompt.parts or ()
        ]
        said = json.dumps([self.prompt.content, parts], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()


class OpenTurn(Recorder, Protocol):
    """A turn under way; also the recorder of its messages.

    `messages` is the view, repaired and with the prompt at its end: calls without a result
    are only left open in the last step, and only those that may run. When the key's turn was
    finished before, `status` is that turn's, `reply` its last message of the model if there is
    one, and nothing may be written. An answer makes the turn done; what is appended after it
    takes the turn up again. Several processes' clocks are never compared. Answers at
    positions after `view_since` reported on the view as it is: it has only grown since.
    """

    number: int
    key: str | None
    status: str
    messages: list[Message]
    reply: Message | None
    usage: Usage
    view_since: int
    pending: tuple[PendingCall, ...]

    def compacted(self, change: Change) -> list[Message]:
        """Commit a compaction and give the new view as it is stored; originals are kept."""

    def compaction_failed(self, spent: Spent) -> None:
        """Commit what an attempt to compact used that changed nothing."""

    @property
    def waits(self) -> Mapping[str, str]:
        """The calls of the last step that wait, by their ids, with what they wait for."""

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """What was decided on calls of the last step, by their ids, as far as it is known here."""

    def hold(self, waits: Mapping[str, str]) -> None:
        """Commit that calls wait for what is named, and that the turn does, all or nothing."""

    def decided(self) -> Mapping[str, Decision]:
        """Look what was decided on calls since; with a decision the turn runs on.

        `pending` are then those that still wait.
        """

    def keep_output(self, text: str, call: ToolCall) -> str | None:
        """Keep the whole text of a result that is cut, and give the id to read it by.

        None where it could not be kept; the turn goes on.
        """

    def output(self, output_id: str) -> str | None:
        """Give a kept text of this chat, None when there is none of that id or it expired."""

    def attachments(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Give attached files of this chat by their parts' ids, without those that are gone."""

    @property
    def files(self) -> FileStore:
        """The files of the chat, which are kept until it is deleted."""

    def finish(self, status: str, error: str = "") -> None:
        """Commit how the turn ended; an answer without calls has committed DONE itself."""

    def close(self) -> None:
        """Give the lease back, as the last thing; may be called twice and never raises."""


class StoredChat(Protocol):
    """The chat of one agent and instance; made by the first `begin`, never by a look."""

    def begin(self, request: TurnRequest) -> OpenTurn:
        """Take the lease and commit the prompt, in one transaction.

        Without a prompt: take up the unsettled turn, or raise NothingToContinue. With one:
        settle what an earlier turn left open first. Raises SessionBusy after `wait`,
        KeyConflict, InsideTransaction, StoreFailed, SessionNotFound (only without a prompt).
        """

    def attached(self, attachment_id: str) -> Upload | None:
        """Give an attached file of the chat; None when there is none of that id, or it is gone."""

    def exists(self) -> bool:
        """Whether the chat is stored."""

    def ended(self, key: str) -> OpenTurn | None:
        """Give the turn of that key if it ended or waits for a decision; nothing may be written."""

    def maintain(self, wait: float | None = None) -> OpenTurn:
        """Take the lease without a turn, to compact; `number` is 0 and no status is stored.

        Raises SessionNotFound, and what `begin` raises.
        """

    def view(self, as_of: int | None = None) -> list[Message]:
        """Give the messages the model would see, or saw when `as_of` was the last position."""

    def undo_compaction(self) -> bool:
        """Go back to the view before the last compaction; False when there was none.

        Raises SessionBusy while a turn runs.
        """

    def history(self) -> Iterator[Message]:
        """Give every message that was kept, compacted ones too, in order."""

    def usage(self) -> Usage:
        """Give the sum of what the chat's model calls used."""

    def pending(self) -> list[PendingCall]:
        """Give the calls that wait for a decision, in call order; [] without a chat."""

    def decide(self, call_id: str, made: Decision) -> PendingCall:
        """Record the one decision on a call that waits, and give the call.

        It needs no lease. Raises SessionNotFound and DecisionRefused: CallNotPending,
        AlreadyDecided.
        """

    def cancel(self) -> bool:
        """Ask the running turn to stop; False when none runs."""

    def delete(self) -> dict[str, int]:
        """Delete the chat and everything of it, and count what went, by kind.

        Raises SessionBusy while a turn runs.
        """


class Store(Protocol):
    """A place that keeps chats."""

    durable: bool

    def chat(self, agent_name: str, instance_id: str) -> StoredChat:
        """Give the handle of a chat without any I/O."""

    def purge_outputs(self, now: datetime, batch_size: int) -> int:
        """Delete the outputs of tools that expired by then, and count them."""
