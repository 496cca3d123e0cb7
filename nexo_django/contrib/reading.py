"""Reading a chat for its watchers: pages of messages, and how its last turn stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Max, Min

from nexo_django import connections
from nexo_django.contrib import envelope
from nexo_django.media import is_attachment
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL
from nexo_django.models import tables
from nexo_django.models.clock import DatabaseTime
from nexo_django.models.tool_call import CallStatus
from nexo_django.stores.base import FAILED, REPLY_STATUSES, RUNNING, STOPPED

BATCH = 200
WAITING = {CallStatus.AWAITING_APPROVAL: "approval", CallStatus.AWAITING_ANSWER: "question"}
# Read for nobody, and it may be large.
ATTACHED = ("id", "name", "media_type", "bytes")
UNREAD = ("reasoning", "raw_usage")


class Cursor(NamedTuple):
    """Up to where a client was told: the position, and the turn whose end it knows."""

    position: int = 0
    turn: int = 0
    status: str = ""

    def __str__(self) -> str:
        return f"{self.position}.{self.turn}.{self.status}" if self.turn else str(self.position)

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Read what str() wrote, or raise Refused."""
        match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,9})\.([a-z_]{1,20}))?", text, re.ASCII)
        if match is None:
            raise envelope.Refused("The cursor is none that this site gave.")
        return cls(int(match[1]), int(match[2] or 0), match[3] or "")


@dataclass(frozen=True)
class State:
    """How a turn stands; `later` says that the chat has gone on to another."""

    turn: int
    row: Any
    later: bool
    # For how many seconds somebody has the chat; 0 when it is free.
    leased_for: float

    @property
    def leased(self) -> bool:
        """Whether a process has the chat."""
        return self.leased_for > 0

    @property
    def running(self) -> bool:
        """Whether a process works on it."""
        return self.leased and not self.later and self.row.status == RUNNING

    @property
    def settled(self) -> bool:
        """Whether it has ended and the chat is free again."""
        return self.later or not self.leased

    @property
    def status(self) -> str:
        """The turn's status; one whose process died is interrupted."""
        dead = self.settled and self.row.status == RUNNING
        return STOPPED if dead else str(self.row.status)

    def same(self, other: State) -> bool:
        """Whether nothing became of the turn since another look at it."""
        mine, theirs = self.row, other.row
        return (self.turn, mine.status, mine.finished) == (
            other.turn,
            theirs.status,
            theirs.finished,
        )

    @property
    def error(self) -> dict[str, Any] | None:
        """What went wrong, as it is sent."""
        if self.status == FAILED:
            return envelope.stored(self.row.error)
        return envelope.told("interrupted") if self.status == STOPPED else None


@dataclass(frozen=True)
class Source:
    """A chat as its watchers read it; every method asks the database."""

    alias: str
    chat_id: int

    @classmethod
    def find(cls, agent_name: str, instance_id: str) -> Source | None:
        """Find the chat of a pair."""
        chats, alias = tables().chat, router.db_for_write(tables().chat)
        rows = chats.objects.using(alias).filter(agent_name=agent_name, instance_id=instance_id)
        with connections.mapped("read"):
            pk = rows.order_by().values_list("pk", flat=True).first()
        return None if pk is None else cls(alias, pk)

    @staticmethod
    def all(agent_name: str, instance_ids: Iterable[str]) -> dict[str, Any]:
        """Give the chats' rows that there are of these, by their instance ids."""
        chats, alias = tables().chat, router.db_for_write(tables().chat)
        rows = chats.objects.using(alias).filter(agent_name=agent_name)
        with connections.mapped("read"):
            return {row.instance_id: row for row in rows.filter(instance_id__in=instance_ids)}

    def state(self, turn: int | None = None) -> State | None:
        """Give how a turn stands, by default the last; None when there is none."""
        rows = self._turns().select_related("chat").annotate(now=DatabaseTime())
        rows = rows.order_by("-number") if turn is None else rows.filter(number=turn)
        with connections.mapped("read"):
            row = rows.first()
        if row is None:
            return None
        chat = row.chat
        expires = chat.lease_expires_at
        left = 0.0
        if chat.lease_token and expires is not None and expires >= row.now:
            left = max((expires - row.now).total_seconds(), 0.001)
        return State(row.number, row, chat.next_turn - 1 > row.number, left)

    def page(self, before: int | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Give the last messages before a position, in order, and whether there are earlier."""
        rows = self._messages().order_by("-position")
        rows = rows if before is None else rows.filter(position__lt=before)
        with connections.mapped("read"):
            found = list(rows[: limit + 1])
            shown = found[:limit][::-1]
            return list(self._described(shown)), len(found) > limit

    def after(self, position: int, turn: int) -> tuple[list[dict[str, Any]], int, bool]:
        """Give some messages after a position, up to those of a turn.

        With them comes the position of the last that was looked at, and whether there are more.
        """
        rows = self._messages().filter(position__gt=position).order_by("position")
        with connections.mapped("read"):
            found = list(rows[:BATCH])
            of = [row for row in found if row.turn is None or row.turn.number <= turn]
            last = found[-1].position if found else position
            return list(self._described(of)), last, len(found) == BATCH

    def last_position(self, turn: int) -> int:
        """Give the position of a turn's last message, or of the last one before it."""
        rows = self._messages().filter(turn__number__lte=turn)
        return int(rows.aggregate(found=Max("position"))["found"] or 0)

    def begin_of(self, turn: int) -> int:
        """Give the position before a turn's first message."""
        rows = self._messages().filter(turn__number=turn)
        found = rows.aggregate(found=Min("position"))["found"]
        return self.last_position(turn) if found is None else int(found) - 1

    def told_up_to(self, position: int) -> int:
        """Give up to where nothing is missing: results may be stored out of their order."""
        asked = self._messages().filter(role=ASSISTANT, position__lte=position)
        step = asked.aggregate(found=Max("position"))["found"]
        if step is None:
            return position
        later = self._messages().filter(position__gt=step, position__lte=position)
        at = int(step)
        for found in later.order_by("position").values_list("position", flat=True):
            if found != at + 1:
                break
            at = found
        return at

    def pending(self, turn: int) -> list[dict[str, Any]]:
        """Give the calls of a turn that wait for the user."""
        calls = tables().tool_call._base_manager.using(self.alias)
        waiting = calls.filter(
            message__chat=self.chat_id, message__turn__number=turn, status__in=WAITING
        )
        with connections.mapped("read"):
            return [asked(call) for call in waiting.order_by("message__position", "index")]

    def answer(self, turn: int) -> str:
        """Give the text of the model's last message in a turn."""
        rows = self._messages().filter(turn__number=turn, role=ASSISTANT)
        return str(rows.order_by("-position").values_list("content", flat=True).first() or "")

    def said_before(self, turn: int) -> int:
        """Give the position before the last message of a turn that is no tool's result."""
        rows = self._messages().filter(turn__number__lte=turn).exclude(role=TOOL)
        return max(int(rows.aggregate(found=Max("position"))["found"] or 0) - 1, 0)

    def keyed(self, key: str, fingerprint: str | None = None) -> int | None:
        """Give the number of the turn with that key, and with that prompt if one is given."""
        rows = self._turns().filter(key=key)
        rows = rows if fingerprint is None else rows.filter(fingerprint=fingerprint)
        found: int | None = rows.values_list("number", flat=True).first()
        return found

    def end(self, state: State) -> tuple[str, dict[str, Any]]:
        """Give the event that says how a settled turn ended."""
        payload: dict[str, Any] = {"turn": state.turn, "status": state.status}
        if state.status not in REPLY_STATUSES:
            return "failed", {**payload, "error": state.error or envelope.told("internal_error")}
        usage = state.row.usage.to_dict()
        return "done", {
            **payload,
            "content": self.answer(state.turn),
            "usage": usage,
            "pending": [] if state.later else self.pending(state.turn),
        }

    def _messages(self) -> Any:
        rows = tables().message.objects.using(self.alias).filter(chat=self.chat_id)
        shown = rows.exclude(role=SYSTEM).select_related("turn", "answers")
        return shown.defer(*UNREAD)

    def _turns(self) -> Any:
        return tables().turn._base_manager.using(self.alias).filter(chat=self.chat_id)

    def _described(self, rows: list[Any]) -> Iterator[dict[str, Any]]:
        asking = [row.pk for row in rows if row.role == ASSISTANT]
        calls: dict[int, list[Any]] = {}
        if asking:
            table = tables().tool_call._base_manager.using(self.alias)
            for call in table.filter(message__in=asking).order_by("message_id", "index"):
                calls.setdefault(call.message_id, []).append(call)
        return (_message(row, calls.get(row.pk, [])) for row in rows)


def asked(call: Any) -> dict[str, Any]:
    """Describe a call that waits for the user."""
    value, kind = call.value(), WAITING[call.status]
    given = value.arguments if isinstance(value.arguments, dict) else {}
    question = given.get("text") if kind == "question" else None
    return {
        "call_id": value.id,
        "name": value.name,
        "arguments": given,
        "kind": kind,
        "question": question if isinstance(question, str) else None,
    }


def _message(row: Any, calls: list[Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "position": row.position,
        "turn": None if row.turn is None else row.turn.number,
        "role": row.role,
        "kind": row.kind,
        "status": row.status,
        "content": row.content,
        "created": row.created.isoformat(),
    }
    if attached := [part for part in row.parts or () if is_attachment(part)]:
        shown["attachments"] = [{name: part[name] for name in ATTACHED} for part in attached]
    if calls:
        shown["tool_calls"] = [_call(call, row.position) for call in calls]
    if row.role == TOOL:
        answered = None if row.answers is None else row.answers.value()
        shown["tool_call_id"] = None if answered is None else answered.id
        shown["name"] = None if answered is None else answered.name
        shown["is_error"] = row.is_error
    return shown


def _call(row: Any, position: int) -> dict[str, Any]:
    value = row.value()
    return {
        "id": value.id,
        "name": value.name,
        "arguments": value.arguments,
        "status": row.status,
        "position": position + 1 + row.index,
    }
