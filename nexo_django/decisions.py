"""Tool calls that wait for somebody, and what was decided on each; values without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.sanitize import clean_text

AWAITING_APPROVAL, AWAITING_ANSWER = AWAITING = ("awaiting_approval", "awaiting_answer")
APPROVED, DENIED, ANSWERED = VERBS = ("approved", "denied", "answered")
APPROVAL, QUESTION = "approval", "question"
# What a decision of each kind is made on.
DECIDES = {APPROVED: AWAITING_APPROVAL, DENIED: AWAITING_APPROVAL, ANSWERED: AWAITING_ANSWER}
MOST_BY = 191


@dataclass(frozen=True)
class PendingCall:
    """A tool call that waits: for an approval, or for the user's answer to its question."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    status: str = AWAITING_APPROVAL

    @property
    def kind(self) -> str:
        """What it waits for: "approval" or "question"."""
        return QUESTION if self.status == AWAITING_ANSWER else APPROVAL

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON-safe dictionary."""
        names = ("id", "name", "arguments", "status", "kind")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Decision:
    """What somebody decided on one call; `text` is the reason of a denial, or the answer."""

    verb: str
    by: str = ""
    text: str = ""
    at: datetime | None = None

    def __str__(self) -> str:
        by = f" by {self.by!r}" if self.by else ""
        at = f" at {self.at:%Y-%m-%d %H:%M:%S %Z}".rstrip() if self.at else ""
        return f"{self.verb}{by}{at}"


def waiting(call: ToolCall, status: str) -> PendingCall:
    """Give a call as one that waits."""
    return PendingCall(call.id, call.name, call.arguments, status)


def status_of(waits: Any) -> str:
    """Give the status of a turn whose calls wait so: an approval goes before an answer."""
    return AWAITING_APPROVAL if AWAITING_APPROVAL in waits else AWAITING_ANSWER


def denial(made: Decision) -> str:
    """Say to the model that its call was denied, and why."""
    reason = clean_text(made.text).strip()
    return "The call was denied; it was not run." + (f" The reason: {reason}" if reason else "")


def closed_result(call: ToolCall, status: str, made: Decision | None) -> Message | None:
    """Make the result of a call that waited when the conversation went on without it.

    None for a call that did not wait: whether that one took effect is unknown.
    """
    text, is_error = "", True
    if made is not None and made.verb == DENIED:
        text = denial(made)
    elif made is not None and made.verb == ANSWERED:
        text, is_error = made.text, False
    elif made is not None:
        text = "The call was approved, but the conversation went on first; it was not run."
    elif status == AWAITING_ANSWER:
        text = "The user did not answer the question, and wrote something else."
    elif status == AWAITING_APPROVAL:
        text = "The call was not run: nobody had approved it when the conversation went on."
    return Message(TOOL, text, tool_call_id=call.id, is_error=is_error) if text else None
