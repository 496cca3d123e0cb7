"""The durable store: chats in the database, safe among processes by a lease and its fence."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db import router
from django.db.models import F

from nexo_django import conf, connections, leases
from nexo_django.decisions import AWAITING, Decision, PendingCall
from nexo_django.exceptions import (
    KeyConflict,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
    brief,
)
from nexo_django.leases import Lease
from nexo_django.media import Upload
from nexo_django.messages import ASSISTANT, Message, Usage
from nexo_django.models import Model, Tables, tables
from nexo_django.stores import (
    database_attachments,
    database_compaction,
    database_decisions,
    database_outputs,
    removal,
    rows,
)
from nexo_django.stores import database_claim as claim
from nexo_django.stores.base import (
    OUTCOMES,
    REPLY_STATUSES,
    TurnRequest,
)
from nexo_django.stores.database_chat import SeenChat, find
from nexo_django.stores.database_turn import DatabaseTurn
from nexo_django.stores.repair import repair
from nexo_django.transcript import repaired

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5


class DatabaseStore:
    """Chats in the database that the router names for writing them."""

    durable = True

    def chat(self, agent_name: str, instance_id: str) -> DatabaseChat:
        """Give the handle of a chat without any I/O."""
        return DatabaseChat(agent_name, instance_id)

    def purge_attachments(self, before: datetime) -> int:
        """Delete attached files that were written before then and have no row; count them."""
        return database_attachments.purge(before)

    def purge_outputs(self, now: datetime, batch_size: int) -> int:
        """Delete the outputs of tools that expired by then, and count them."""
        return database_outputs.purge(now, batch_size)


class _Waiting:
    """How long to wait for a busy chat, and how long between two looks."""

    def __init__(self, wait: float | None) -> None:
        wait = conf.get("TURN_WAIT") if wait is None else wait
        self.until, self.longest = time.monotonic() + wait, FIRST_PAUSE

    def pause(self) -> float | None:
        """Give the next pause, or None when the time is over."""
        left = self.until - time.monotonic()
        if left <= 0:
            return None
        longest, self.longest = self.longest, min(self.longest * 2, LONGEST_PAUSE)
        # Those that wait must not all come back at once.
        return min(left, random.uniform(longest / 2, longest))  # noqa: S311


class DatabaseChat:
    """The chat of one agent and instance; made by the first turn."""

    def __init__(self, agent_name: str, instance_id: str) -> None:
        self.agent_name, self.instance_id = agent_name, instance_id
        self.tables: Tables = tables()
        self.alias: str = router.db_for_write(self.tables.chat)

    def begin(self, request: TurnRequest) -> DatabaseTurn:
        """Take the lease and commit the prompt; see StoredChat."""
        connections.outside_transaction(self.alias)
        waiting = _Waiting(request.wait)
        while True:
            with connections.mapped("read"):
                chat = self._find()
                busy = _busy_for(chat)
                keyed = self._keyed(chat, request)
            if keyed is not None and keyed.status in OUTCOMES:
                return self._finished(keyed)
            if busy is None:
                turn = self._begin(chat, keyed, request)
                if turn is not None:
                    return turn
                continue
            self._wait(waiting, busy)

    def maintain(self, wait: float | None = None) -> DatabaseTurn:
        """Take the lease without a turn, to compact; see StoredChat."""
        connections.outside_transaction(self.alias)
        waiting = _Waiting(wait)
        while True:
            with connections.mapped("read"):
                chat = self._find()
            if chat is None:
                raise self._missing()
            busy = _busy_for(chat)
            if busy is not None:
                self._wait(waiting, busy)
            elif turn := self._maintained(chat):
                return turn

    def attached(self, attachment_id: str) -> Upload | None:
        """Give an attached file of the chat, None when there is none of that id."""
        address = {"chat__agent_name": self.agent_name, "chat__instance_id": self.instance_id}
        with connections.mapped("read"):
            return database_attachments.find(self.tables, self.alias, attachment_id, **address)

    def exists(self) -> bool:
        """Whether the chat is stored."""
        with connections.mapped("read"):
            return bool(self._rows().exists())

    def ended(self, key: str) -> DatabaseTurn | None:
        """Give the turn of that key if it ended or waits for a decision."""
        with connections.mapped("read"):
            chat = self._rows().first()
            row = chat and self._turns().filter(chat=chat, key=key).first()
        return self._finished(row) if row and row.status in REPLY_STATUSES else None

    def view(self, as_of: int | None = None) -> list[Message]:
        """Give the messages the model would see, or saw when `as_of` was the last position."""
        with connections.mapped("read"):
            chat = self._find()
            if chat is None:
                return []
            if as_of is None:
                return repaired(rows.view(chat, self._messages()).values())
            return repaired(rows.view_as_of(chat, self._messages(), as_of).values())

    def undo_compaction(self) -> bool:
        """Go back to the view before the last compaction; False when there was none."""
        with connections.mapped():
            chat = self._find()
            busy = _busy_for(chat)
            if chat is None or (busy is None and chat.current_compaction is None):
                return False
            if busy is None and database_compaction.undo(self.tables, self.alias, chat.pk):
                return True
        raise SessionBusy(f"A turn of {self._name()} is running.", retry_after=busy or 0.0)

    def history(self) -> Iterator[Message]:
        """Give every message that was kept, compacted ones too, in order."""
        with connections.mapped("read"):
            found = self._rows().values_list("pk", flat=True).first()
            if found is not None:
                yield from rows.history(found, self._messages())

    def pending(self) -> list[PendingCall]:
        """Give the calls that wait for a decision, in call order; [] without a chat."""
        return database_decisions.pending(self)

    def decide(self, call_id: str, made: Decision) -> PendingCall:
        """Record the one decision on a call that waits; see StoredChat."""
        return database_decisions.decide(self, call_id, made)

    def usage(self) -> Usage:
        """Give the sum of what the chat's model calls used."""
        with connections.mapped("read"):
            chat = self._rows().first()
            return Usage() if chat is None else chat.usage

    def cancel(self) -> bool:
        """Ask the running turn to stop; False when none runs."""
        running = self._rows().leased().filter(open_turn__isnull=False)
        with connections.mapped():
            return bool(running.update(cancel_turn=F("open_turn")))

    def delete(self) -> dict[str, int]:
        """Delete the chat and everything of it, and count what went, by kind."""
        with connections.mapped():
            chat = self._find()
            if chat is None:
                return {}
            gone = removal.remove(self.tables, self.alias, chat.pk)
        if gone is None:
            raise SessionBusy(
                f"A turn of {self._name()} is running; cancel it, then delete the session.",
                retry_after=_busy_for(chat) or 0.0,
            )
        return gone

    def _new(self) -> Any:
        return self.tables.chat(agent_name=self.agent_name, instance_id=self.instance_id)

    def _find(self) -> SeenChat | None:
        """Read the chat's row, its lease as the database's clock sees it."""
        return find(self.tables, self.alias, self.agent_name, self.instance_id)

    def _rows(self) -> Any:
        chats = self.tables.chat.objects.using(self.alias).order_by()
        return chats.filter(agent_name=self.agent_name, instance_id=self.instance_id)

    def _messages(self) -> Any:
        return self.tables.message.objects.using(self.alias)

    def _turns(self) -> Any:
        return self.tables.turn._base_manager.using(self.alias)

    def _keyed(self, chat: Any, request: TurnRequest) -> Any:
        """Find the key's turn; refuse the key if it had another prompt."""
        if chat is None or request.key is None or request.prompt is None:
            return None
        turn = self._turns().filter(chat=chat.pk, key=request.key).first()
        if turn is not None and turn.fingerprint != request.fingerprint:
            raise KeyConflict(
                f"The key {brief(request.key)} was used for turn {turn.number} with another "
                f"prompt; take a new key for a new prompt."
            )
        return turn

    def _wait(self, waiting: _Waiting, busy: float) -> None:
        pause = waiting.pause()
        if pause is None:
            raise SessionBusy(f"Another turn of {self._name()} is running.", retry_after=busy)
        connections.release(self.alias)
        time.sleep(pause)

    def _begin(self, chat: Any, keyed: Any, request: TurnRequest) -> DatabaseTurn | None:
        """Take the lease for a new turn or the open one; None if another was faster."""
        row = self._taken_up(chat, keyed, request)
        with connections.mapped():
            model_id = self._model_id(chat, request.model)
        try:
            if row is None:
                with database_attachments.kept(self.tables, self.alias, request.files) as files:
                    chat, lease, row = connections.first(
                        self.alias,
                        lambda: claim.start(
                            self.tables, self.alias, chat or self._new(), request, model_id, files
                        ),
                    )
            else:
                lease = connections.first(
                    self.alias, lambda: claim.resume(self.tables, self.alias, chat, row, model_id)
                )
        except claim.Raced:
            return None
        turn = DatabaseTurn(
            self.tables,
            self.alias,
            row,
            lease,
            next_position=chat.next_position,
            model_id=model_id,
        )
        try:
            leases.keep(lease)
            self._load(turn, chat, None if request.prompt and keyed is None else request.idempotent)
        except BaseException:
            turn.close()
            raise
        return turn

    def _taken_up(self, chat: Any, keyed: Any, request: TurnRequest) -> Any:
        """Give the turn to go on with, or None for a new one."""
        if request.prompt is not None and keyed is None:
            return None
        if chat is None:
            raise self._missing()
        if keyed is not None and keyed.number != chat.open_turn:
            raise NothingToContinue(
                f"Turn {keyed.number} was interrupted and the session went on without it; "
                f"prompt again with a new key."
            )
        with connections.mapped("read"):
            row = keyed or self._turns().filter(chat=chat.pk, number=chat.open_turn).first()
        if row is None:
            raise NothingToContinue("The session's last turn is finished; prompt() starts another.")
        return row

    def _model_id(self, chat: SeenChat | None, model: str | None) -> int | None:
        if chat is not None and (model is None or chat.asks(model)):
            return chat.model_id
        return None if model is None else Model.key(model, self.alias)

    def _maintained(self, chat: Any) -> DatabaseTurn | None:
        lease = Lease(self.tables.chat, self.alias, chat.pk)
        with connections.mapped():
            if not lease.claim({"next_turn": chat.next_turn, **claim.shown(chat)}):
                return None
        row = self.tables.turn(chat_id=chat.pk, number=0)
        turn = DatabaseTurn(self.tables, self.alias, row, lease, next_position=chat.next_position)
        try:
            leases.keep(lease)
            with connections.mapped("read"):
                loaded = rows.view(chat, self._messages())
            # What may still be continued stays open.
            turn.show(loaded, database_compaction.view_since(chat), keep_open=True)
        except BaseException:
            turn.close()
            raise
        connections.release(self.alias)
        return turn

    def _load(self, turn: DatabaseTurn, chat: Any, idempotent: frozenset[str] | None) -> None:
        """Load the turn's view, mended; with `idempotent` it may have calls still to run."""
        keep_open = idempotent is not None
        with connections.mapped("read"):
            loaded = rows.view(chat, self._messages())
        repair(turn, loaded, keep_open=keep_open, idempotent=idempotent or frozenset())
        turn.show(loaded, database_compaction.view_since(chat), keep_open=keep_open)
        connections.release(self.alias)

    def _finished(self, row: Any) -> DatabaseTurn:
        """Give a turn that was finished before, with the reply that it had."""
        turn = DatabaseTurn(self.tables, self.alias, row)
        answers = self._messages().filter(turn=row, role=ASSISTANT).order_by("-position")
        with connections.mapped("read"):
            answer = answers.first()
            turn.reply = None if answer is None else answer.value()
        turn.pending = tuple(self.pending()) if row.status in AWAITING else ()
        return turn

    def _missing(self) -> SessionNotFound:
        return SessionNotFound(f"There is no session of {self._name()}; a prompt makes it.")

    def _name(self) -> str:
        return f"{brief(self.agent_name)} for {brief(self.instance_id)}"


def _busy_for(chat: SeenChat | None) -> float | None:
    return None if chat is None else chat.busy()
