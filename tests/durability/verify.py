"""What must hold of a session whatever happened to its processes, checked against the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nexo_django import Session
from nexo_django.messages import ASSISTANT, NORMAL, TOOL, USER, Message
from nexo_django.models import Chat, Turn
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as CallRow
from nexo_django.transcript import problem, sendable
from tests.durability import journal
from tests.durability.workers import Durable, answer


@dataclass
class Findings:
    """What was found wrong, by kind; all empty when nothing is."""

    losses: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.losses or self.duplicates or self.invalid or self.broken)


def findings(instance: str) -> Findings:
    """Check a session that has just finished a turn."""
    found = Findings()
    history = Session.resume(Durable, instance).history()
    _prompts(instance, history, found)
    _answers(instance, history, found)
    _results(instance, history, found)
    _requests(instance, history, found)
    _rows(instance, found)
    return found


def _prompts(instance: str, history: list[Message], found: Findings) -> None:
    stored = [(m.content or "").split()[0] for m in history if _is_prompt(m)]
    seen = journal.values(instance, journal.REQUEST, "name")
    replied = journal.values(instance, journal.REPLY, "name")
    found.losses += [f"prompt {name}" for name in {*seen, *replied} if name not in stored]
    found.duplicates += [f"prompt {name}" for name in journal.repeated(stored)]
    issued = list(dict.fromkeys(journal.values(instance, journal.ISSUED, "name")))
    if _one_by_one(instance) and stored != [name for name in issued if name in stored]:
        found.broken.append(f"prompts out of order: {stored}")


def _is_prompt(message: Message) -> bool:
    return message.role == USER and message.kind == NORMAL


def _one_by_one(instance: str) -> bool:
    """Whether the prompts were given one after the other, not by a crowd."""
    return not instance.startswith("crowd")


def _answers(instance: str, history: list[Message], found: Findings) -> None:
    stored = []
    asked = ""
    for message in history:
        if _is_prompt(message):
            asked = (message.content or "").split()[0]
        elif message.role == ASSISTANT and not message.calls and message.status == "complete":
            stored.append(message.content or "")
            if message.content != answer(asked):
                found.broken.append(f"{message.content!r} stands under {asked}")
    acknowledged = {answer(name) for name in journal.values(instance, journal.ANSWER, "name")}
    acknowledged |= set(journal.values(instance, journal.REPLY, "content")) - {""}
    found.losses += [text for text in acknowledged if text not in stored]
    found.duplicates += journal.repeated(stored)


def _results(instance: str, history: list[Message], found: Findings) -> None:
    stored: dict[str, Message] = {}
    marks: dict[str, str] = {}
    for message in history:
        for call in message.calls:
            marks[call.id] = str(call.arguments["mark"])
        if message.role == TOOL:
            mark = marks[message.tool_call_id or ""]
            if mark in stored:
                found.duplicates.append(f"result of {mark}")
            stored[mark] = message
    for content in journal.values(instance, journal.RESULT, "content"):
        kept = stored.get(content.removeprefix("did "))
        if kept is None or kept.content != content or kept.is_error:
            found.losses.append(f"result {content}")
    for mark in journal.repeated(journal.values(instance, journal.EFFECT, "mark")):
        found.duplicates.append(f"effect of {mark}")


def _requests(instance: str, history: list[Message], found: Findings) -> None:
    found.invalid += [
        f"{fact['name']}, step {fact['step']}: {fact['problem']}"
        for fact in journal.read(instance, journal.REQUEST)
        if fact["problem"]
    ]
    summaries = journal.values(instance, journal.SUMMARY, "problem")
    found.invalid += [f"summary: {wrong}" for wrong in summaries if wrong]
    if wrong := problem(sendable(history)):
        found.invalid.append(f"history: {wrong}")


def _rows(instance: str, found: Findings) -> None:
    chats = list(Chat.objects.filter(agent_name=Durable.name, instance_id=instance))
    if len(chats) != 1:
        found.duplicates.append(f"{len(chats)} chats")
        return
    chat = chats[0]
    turns = list(Turn.objects.filter(chat=chat).order_by("number"))
    if [turn.number for turn in turns] != list(range(1, len(turns) + 1)):
        found.broken.append(f"turn numbers {[turn.number for turn in turns]}")
    if running := [turn.number for turn in turns if turn.status == "running"]:
        found.broken.append(f"turns still running: {running}")
    open_calls = CallRow.objects.filter(message__chat=chat, status__in=("pending", "running"))
    if count := open_calls.count():
        found.broken.append(f"{count} calls still open")
    if chat.lease_token:
        found.broken.append("the lease was not given back")
    counted = Row.objects.filter(chat=chat).exclude(role="system").count()
    if chat.message_count not in (counted, counted + 1):
        found.broken.append(f"the chat counts {chat.message_count} messages and has {counted}")


def settled_by(instance: str, name: str) -> dict[str, Any]:
    """Say how the turn of a prompt stands: whether it is stored, and its status."""
    row = Row.objects.filter(
        chat__instance_id=instance, role=USER, content__startswith=f"{name} "
    ).first()
    turn = row.turn if row is not None else None
    return {"stored": row is not None, "status": turn.status if turn else None}
