"""A turn under way in the database: every write is one short transaction behind the fence."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.utils import timezone

from nexo_django import connections
from nexo_django.compaction.change import Change, Spent
from nexo_django.decisions import AWAITING, Decision, PendingCall
from nexo_django.exceptions import LeaseLost, StoreFailed, TurnCancelled, brief, is_abort
from nexo_django.leases import Lease
from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    SYSTEM,
    TOOL,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.models import Tables, compiled
from nexo_django.models.tool_call import UNANSWERED, CallStatus
from nexo_django.models.usage import sums
from nexo_django.models.values import message_value
from nexo_django.sanitize import clean_message, clean_text, clean_usage
from nexo_django.stores import (
    database_attachments,
    database_compaction,
    database_decisions,
    database_outputs,
    rows,
)
from nexo_django.stores.base import DONE, OUTCOMES, RUNNING
from nexo_django.stores.contents import settles
from nexo_django.stores.database_files import DatabaseFiles
from nexo_django.transcript import distinct, repaired

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
NOT_STARTED = (CallStatus.PENDING, *AWAITING)


class DatabaseTurn:
    """An open turn; also the recorder of its messages. Threads may share it."""

    def __init__(
        self,
        tables: Tables,
        alias: str,
        row: Any,
        lease: Lease | None = None,
        *,
        next_position: int = 0,
        model_id: int | None = None,
    ) -> None:
        self.number, self.key, self.status = row.number, row.key, row.status
        self.usage: Usage = row.usage
        self.messages: list[Message] = []
        self.reply: Message | None = None
        self.tables, self.alias, self.row, self.lease = tables, alias, row, lease
        self.next_position, self.model_id = next_position, model_id
        # The stored system message, and the calls of the last step by their ids.
        self.system: Any = None
        self.calls: dict[str, Any] = {}
        # Answers at later positions reported on the view as it is.
        self.view_since = 0
        # The calls that wait when the turn has stopped.
        self.pending: tuple[PendingCall, ...] = ()
        # The keys of what was kept of results that are not stored yet, by their calls' ids.
        self.outputs: dict[str, Any] = {}
        self.files = DatabaseFiles(self)
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._polled = time.monotonic()

    def show(self, loaded: rows.Rows, since: int, *, keep_open: bool) -> None:
        """Begin with the view that was loaded."""
        self.system = next((row for row in loaded.messages if row.position == 0), None)
        self.view_since = since
        self.messages = repaired(loaded.values(), keep_open=keep_open)
        # However long that took: a long view must not cost a look more than a short one.
        self._polled = time.monotonic()

    def append(self, message: Message, *, denied: bool = False) -> Message:
        """Commit a message and give it as it was stored."""
        if message.role == SYSTEM:
            return self.set_system(message.content) or message
        with self._alone():
            value = distinct(clean_message(message))
            call = self.calls.get(value.tool_call_id or "") if value.role == TOOL else None
            if call is not None:
                return self._result(value, call, denied)
            return self._message(value)

    def set_system(self, text: str | None) -> Message | None:
        """Make this the one system message, or take it away; writes only what changes."""
        with self._alone():
            row, text = self.system, clean_text(text or "")
            if text == ("" if row is None else row.content):
                return None if row is None else message_value(row)
            with self.writing():
                if text:
                    row = self._put_system(row, text)
                else:
                    stored = self._stored(row)
                    self.fence(**stored.withdrawal())
                    stored.delete(using=self.alias)
            self.system = row if text else None
            return None if self.system is None else message_value(self.system)

    def start_call(self, call: ToolCall) -> None:
        """Commit that a tool call starts to run; a call that has started does not again."""
        with self._alone():
            row = self.calls.get(call.id)
            if row is None:
                return
            with self.writing():
                self.fence()
                waiting = self._calls().filter(pk=row.pk, status__in=NOT_STARTED)
                if not waiting.update(status=CallStatus.RUNNING, started=timezone.now()):
                    raise StoreFailed(f"The call {brief(call.id)} has been started before.")

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn was cancelled or lost its lease.

        It asks the database at most twice a second, except `now`, and leaves it to the next
        write to fail where it can't be asked.
        """
        lease = self._held()
        if lease.lost:
            raise self._lost()
        if not now and time.monotonic() - self._polled < POLL_SECONDS:
            return
        self._polled = time.monotonic()
        try:
            with connections.mapped("read"):
                found = lease.read("cancel_turn")
        except StoreFailed as error:
            logger.warning("turn=%s checkpoint: %s", self.number, error)
            return
        finally:
            self.give_back()
        if found is None:
            raise self._lost()
        if found[0] == self.number:
            raise TurnCancelled(f"Turn {self.number} was cancelled.")

    def compacted(self, change: Change) -> list[Message]:
        """Commit a compaction and give the new view as it is stored; originals are kept."""
        change = replace(change, usage=clean_usage(change.usage))
        with self._alone():
            with self.writing():
                seen = database_compaction.store(self, change)
                usage = self.usage + change.usage
                self.update_turn(usage, self.status)
            self.usage, self.view_since = usage, seen
            with connections.mapped("read"):
                chats = self.tables.chat.objects.using(self.alias)
                chat = chats.select_related("current_compaction__summary").get(pk=self.row.chat_id)
                shown = rows.view(chat, self.tables.message.objects.using(self.alias))
            self.give_back()
            return repaired(shown.values(), keep_open=True)

    def compaction_failed(self, spent: Spent) -> None:
        """Commit what an attempt to compact used that changed nothing."""
        spent = replace(spent, usage=clean_usage(spent.usage))
        with self._alone():
            with self.writing():
                database_compaction.store_failed(self, spent)
                usage = self.usage + spent.usage
                self.update_turn(usage, self.status)
            self.usage = usage

    @property
    def waits(self) -> dict[str, str]:
        """The calls of the last step that wait, with what they wait for."""
        return database_decisions.waits(self)

    @property
    def decisions(self) -> dict[str, Decision]:
        """What was decided on the calls of the last step, as far as it is known here."""
        return database_decisions.decisions(self)

    def hold(self, waits: Mapping[str, str]) -> None:
        """Commit that calls wait, and that the turn does, in one transaction."""
        with self._alone():
            database_decisions.hold(self, waits)

    def decided(self) -> dict[str, Decision]:
        """Look what was decided on calls that wait; the turn runs on if there is something."""
        with self._alone():
            made, self.pending = database_decisions.decided(self)
            return made

    def keep_output(self, text: str, call: ToolCall) -> str | None:
        """Keep the whole text of a result that is cut, and give the id to read it by."""
        try:
            kept = database_outputs.keep(self, text)
        except LeaseLost:
            raise
        except Exception as error:  # a storage of the host's may raise anything
            if is_abort(error) and not isinstance(error, StoreFailed):
                raise
            logger.warning("turn=%s output not kept: %s", self.number, type(error).__name__)
            return None
        self.outputs[call.id] = kept
        return str(kept)

    def output(self, output_id: str) -> str | None:
        """Give a kept text of this chat, None when there is none of that id or it expired."""
        try:
            with connections.mapped("read"):
                return database_outputs.read(self.tables, self.alias, self.row.chat_id, output_id)
        finally:
            self.give_back()

    def attachments(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Give attached files of this chat by their parts' ids, without those that are gone."""
        try:
            with connections.mapped("read"):
                chat_id = self.row.chat_id
                return database_attachments.read(self.tables, self.alias, chat_id, ids)
        finally:
            self.give_back()

    def finish(self, status: str, error: str = "") -> None:
        """Commit how the turn ended; an answer without calls has committed DONE itself."""
        if self.status == DONE or self.status == status in AWAITING:
            return
        with self._alone(), self.writing(last=True):
            self.fence(**({"open_turn": None} if status in OUTCOMES else {}))
            self.update_turn(self.usage, status, error=error[:100])
        self.status = status

    def close(self) -> None:
        """Give the lease back, as the last thing; may be called twice and never raises."""
        if self.lease is None or not self.lease.here:
            return
        with self._lock:
            lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.release()
        except Exception as error:
            logger.warning("turn=%s lease kept: %s", self.number, type(error).__name__)
        self.give_back()

    @contextmanager
    def writing(self, *, last: bool = False) -> Iterator[None]:
        """Run one transaction of this turn, and give the connection back after it.

        Not after the `last` one, which the lease's return follows at once.
        """
        self._held()
        try:
            with connections.short(self.alias):
                yield
        finally:
            if not last:
                self.give_back()

    def fence(self, **changes: Any) -> None:
        """Change the chat's row, or raise LeaseLost; every transaction begins with it."""
        if not self._held().renew(**changes):
            raise self._lost()

    def advance(self, step: int, **changes: Any) -> int:
        """Take the chat's next positions, with its other changes, behind the fence."""
        lease = self._held()
        while True:
            at = self.next_position
            after = {"next_position": at + step, **changes}
            if lease.renew({"next_position": at}, **after):
                self.next_position = at + step
                return at
            # A message that was saved outside the turn has moved it, or the lease is gone.
            found = lease.read("next_position")
            if found is None:
                raise self._lost()
            self.next_position = found[0]

    def store_result(self, value: Message, call: Any, position: int, status: str) -> Any:
        """Store a call's result at its place, inside `writing`; a second one is refused."""

        def put(totals: dict[str, Any]) -> int:
            self.fence(**totals)
            waiting = self._calls().filter(UNANSWERED, pk=call.pk)
            if not waiting.update(status=status, finished=timezone.now()):
                raise StoreFailed(f"The call {brief(call.call_id)} has its result already.")
            return position

        row = self.tables.message.from_value(
            value, chat_id=self.row.chat_id, turn_id=self.row.pk, answers=call
        )
        row.place = put
        row.save(using=self.alias, force_insert=True)
        return row

    def _result(self, value: Message, call: Any, denied: bool) -> Message:
        status = CallStatus.FAILED if value.is_error else CallStatus.DONE
        if denied:
            status = CallStatus.DENIED
        if value.status == INTERRUPTED:
            status = CallStatus.INTERRUPTED
        kept = self.outputs.pop(value.tool_call_id or "", None)
        with self.writing():
            row = self.store_result(value, call, call.place, status)
            if kept is not None:
                outputs = self.tables.output._base_manager.using(self.alias)
                outputs.filter(pk=kept).update(message=row)
        return message_value(row, answers=value.tool_call_id)

    def _message(self, value: Message) -> Message:
        done = settles(value)
        usage = self.usage + value.usage if value.usage else self.usage
        # What comes after an answer takes the turn up again: it was not the last one.
        status = DONE if done else RUNNING if self.status == DONE else self.status
        links = {"chat_id": self.row.chat_id, "turn_id": self.row.pk}
        if value.role == ASSISTANT:
            links["model_id"] = self.model_id
        row = self.tables.message.from_value(value, **links)
        moved = {} if status == self.status else {"open_turn": None if done else self.number}
        row.place = lambda totals: self.advance(1 + len(value.calls), **totals, **moved)
        with self.writing(last=done):
            row.save(using=self.alias, force_insert=True)
            calls = self._store_calls(row)
            if status != self.status or value.usage:
                self.update_turn(usage, status)
        if row.role != TOOL:
            self.calls, self.outputs = calls, {}
        self.status, self.usage = status, usage
        return message_value(row, row.new_calls, value.tool_call_id)

    def _store_calls(self, row: Any) -> dict[str, Any]:
        table = self.tables.tool_call
        calls = table.from_values(row, row.new_calls)
        if calls:
            self._calls().bulk_create(calls)
            if calls[0].pk is None:
                # MySQL gives no keys back from an INSERT of several rows.
                calls = list(self._calls().filter(message=row).select_related("message"))
        return {call.value().id: call for call in calls}

    def _put_system(self, row: Any, text: str) -> Any:
        table = self.tables.message
        if row is None:
            row = table.from_value(Message(SYSTEM, text), chat_id=self.row.chat_id)
        else:
            row = self._stored(row)
            row.content = text

        def put(totals: dict[str, Any]) -> int:
            self.fence(**totals)
            return 0

        row.place = put
        row.save(using=self.alias)
        return row

    def _stored(self, row: Any) -> Any:
        messages = self.tables.message._base_manager.using(self.alias)
        stored = messages.filter(pk=row.pk).first()
        if stored is None:
            # Only another turn takes the system message away.
            raise self._lost()
        return stored

    def update_turn(self, usage: Usage, status: str, **changes: Any) -> None:
        """Write what the turn used and how it stands, inside `writing`."""
        if self.row.pk is None:
            return
        used = sums(usage)
        if not usage.total and usage.cost is None:
            del used["cost"]
        finished = None if status in (RUNNING, *AWAITING) else timezone.now()
        # A commit whose confirmation was lost may have settled it already.
        seen = {"pk": self.row.pk, "status": self.status}
        after = {"status": status, "finished": finished, **used, **changes}
        compiled.update(self.tables.turn, self.alias, seen, after)

    def _calls(self) -> Any:
        return self.tables.tool_call._base_manager.using(self.alias)

    def _held(self) -> Lease:
        lease = self.lease
        if lease is None:
            raise LeaseLost(f"Turn {self.number} is over; nothing was written.")
        if not lease.here:
            raise LeaseLost(
                f"Turn {self.number} is of the process that this one was forked from; nothing "
                f"was written. A child must leave by os._exit(), not through its parent's turn."
            )
        return lease

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # First whose it is: in a forked child nobody may ever free the lock.
        self._held()
        with self._lock:
            yield

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"Turn {self.number} no longer holds its session: it was slower than LEASE_SECONDS, "
            f"and another turn took over. Nothing more was written."
        )

    def give_back(self) -> None:
        """Give this thread's connection back."""
        # A tool's thread has no further use of its connection.
        connections.release(self.alias, close=threading.get_ident() != self._thread)
