"""Messages, tool calls and usage as values, and the log that a turn works on.

Nothing here knows a database or a provider. `to_dict` and `from_dict` are exact inverses;
the dictionaries are the lines of a JSONL session.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol, Self

SYSTEM, USER, ASSISTANT, TOOL = ROLES = ("system", "user", "assistant", "tool")
NORMAL, SUMMARY, NOTICE = KINDS = ("normal", "summary", "notice")
COMPLETE, INTERRUPTED = STATUSES = ("complete", "interrupted")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of model calls.

    `input` counts the whole prompt, what came from a cache (`cached`) or went into one
    (`cache_write`) included; `output` includes `reasoning`. `cost` is in US dollars; None
    where a price is unknown, and so is every sum with it. `raw` is the provider's own report.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: Decimal | None = None
    raw: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        """Input and output tokens."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        known = [u.cost for u in (self, other) if u.cost is not None or u.total]
        cost = None if None in known or not known else sum(c for c in known if c is not None)
        return Usage(**counts, cost=None if cost is None else Decimal(cost))

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON-safe dictionary; the cost is text, so that it stays exact."""
        data: dict[str, Any] = {name: getattr(self, name) for name in COUNTS}
        data["cost"] = None if self.cost is None else str(self.cost)
        if self.raw is not None:
            data["raw"] = self.raw
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Usage:
        """Read what `to_dict` gave."""
        _check(data, "usage")
        counts = {name: int(data.get(name) or 0) for name in COUNTS}
        try:
            cost = None if data.get("cost") is None else Decimal(data["cost"])
        except ArithmeticError:
            raise ValueError("A usage's cost is a number, or null where it is unknown.") from None
        return cls(**counts, cost=cost, raw=data.get("raw"))


COUNTS = ("input", "output", "cached", "cache_write", "reasoning")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for.

    `raw_arguments` keeps the text of arguments that were no JSON object; `arguments` is
    then empty. `provider_fields` is replayed to the provider that sent it.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    raw_arguments: str | None = None
    provider_fields: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON-safe dictionary; keys that say nothing are left out."""
        data: dict[str, Any] = {"id": self.id, "name": self.name, "arguments": self.arguments}
        if self.raw_arguments is not None:
            data["raw_arguments"] = self.raw_arguments
        if self.provider_fields is not None:
            data["provider_fields"] = self.provider_fields
        return {**data, **self.extra}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        """Read what `to_dict` gave, keeping unknown keys."""
        _check(data, "tool call")
        known = {name: data[name] for name in CALL_KEYS if name in data}
        extra = {name: value for name, value in data.items() if name not in CALL_KEYS}
        try:
            return cls(**known, extra=extra)
        except TypeError:
            raise ValueError(
                f"A tool call needs an id and a name; it has {sorted(data)}."
            ) from None


CALL_KEYS = ("id", "name", "arguments", "raw_arguments", "provider_fields")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a session.

    `tool_calls` may be None or empty; `calls` is always a tuple. `tool_call_id` names the
    call that a tool message answers. `parts` are multimodal parts by reference, `content`
    is always text. `mark` names the compaction layer that rewrote the message. `position`
    and `token_count` belong to the store that the message came from, not to its value.
    """

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    is_error: bool = False
    parts: tuple[dict[str, Any], ...] | None = None
    reasoning: dict[str, Any] | None = None
    kind: str = NORMAL
    status: str = COMPLETE
    mark: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    position: int | None = field(default=None, compare=False)
    token_count: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"A message's role is one of {', '.join(ROLES)}, not {self.role!r}.")
        if self.content is not None and not isinstance(self.content, str):
            kind = type(self.content).__name__
            raise TypeError(f"A message's content is text or None, not {kind}; parts go in parts=.")
        # Frozen: assignment goes around the guard once, while the value is made.
        if self.tool_calls is not None:
            calls = tuple(
                c if isinstance(c, ToolCall) else ToolCall.from_dict(c) for c in self.tool_calls
            )
            object.__setattr__(self, "tool_calls", calls)
        if self.parts is not None:
            object.__setattr__(self, "parts", tuple(self.parts))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, an empty tuple when there are none."""
        return self.tool_calls or ()

    @property
    def says_something(self) -> bool:
        """Whether the message has text, calls or a part that is not blank: what a provider accepts."""
        has_text = bool(self.content and self.content.strip())
        return has_text or bool(self.calls) or not all(map(is_blank, self.parts or ()))

    def replace(self, **changes: Any) -> Message:
        """Give a copy with some fields changed; its count goes with what was counted."""
        if not changes.keys() <= UNCOUNTED:
            changes.setdefault("token_count", None)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Give the JSONL line's dictionary; keys that say nothing are left out."""
        data: dict[str, Any] = {"role": self.role}
        if self.content is not None:
            data["content"] = self.content
        if self.tool_calls is not None:
            data["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        for name, default in MESSAGE_KEYS.items():
            if (value := getattr(self, name)) != default:
                data[name] = list(value) if name == "parts" else value
        if self.usage is not None:
            data["usage"] = self.usage.to_dict()
        return {**data, **self.extra}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """Read what `to_dict` gave, keeping unknown keys.

        Raises ValueError or TypeError, with the reason, when it is no message.
        """
        _check(data, "message")
        known = {
            k: v
            for k, v in data.items()
            if k in MESSAGE_KEYS or k in ("role", "content", "tool_calls")
        }
        if "role" not in known:
            raise ValueError(f"A message needs a role; this one has only {sorted(data)}.")
        if data.get("usage") is not None:
            known["usage"] = Usage.from_dict(data["usage"])
        taken = {*known, "usage"}
        return cls(**known, extra={k: v for k, v in data.items() if k not in taken})


MESSAGE_KEYS: dict[str, Any] = {
    "tool_call_id": None,
    "is_error": False,
    "parts": None,
    "reasoning": None,
    "kind": NORMAL,
    "status": COMPLETE,
    "mark": None,
    "model": None,
    "finish_reason": None,
}


def is_blank(part: Any) -> bool:
    """Whether a part is a text part without text, which providers refuse."""
    if not isinstance(part, Mapping) or part.get("type") != "text":
        return False
    text = part.get("text")
    return not (isinstance(text, str) and text.strip())


# What does not change how many tokens a message takes.
UNCOUNTED = {"usage", "kind", "status", "mark", "position", "token_count"}


def _check(data: Any, what: str) -> None:
    """Raise for what is no dictionary; a line of a file may be any JSON."""
    if not isinstance(data, Mapping):
        raise TypeError(f"A {what} is a dictionary, not {type(data).__name__}.")


class Recorder(Protocol):
    """Where a turn's messages are committed as they are produced.

    Every method may be called from a tool's thread, and raises when the turn must not go on
    (LeaseLost, TurnCancelled, LimitExceeded, StoreFailed).
    """

    def append(self, message: Message, *, denied: bool = False) -> Message:
        """Commit a message and give it as it was stored; `denied` says that its call was."""

    def set_system(self, text: str | None) -> Message | None:
        """Make this the one system message, or take it away."""

    def start_call(self, call: ToolCall) -> None:
        """Commit that a tool call starts to run."""

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn was cancelled or lost its lease.

        A store may look only now and then; with `now` it looks: between two steps.
        """


class MessageLog(list[Message]):
    """The messages of a turn; those appended go through the recorder first."""

    recorder: Recorder | None = None

    def append(self, message: Message) -> None:
        """Commit a message, then add it."""
        super().append(self.record(message))

    def record(self, message: Message, *, denied: bool = False) -> Message:
        """Commit a message without adding it: a tool's thread does so as its call ends."""
        if self.recorder is None:
            return message
        return (
            self.recorder.append(message, denied=True) if denied else self.recorder.append(message)
        )

    def add(self, messages: Iterable[Message]) -> None:
        """Add messages that are committed already."""
        super().extend(messages)

    def extend(self, messages: Iterable[Message]) -> None:
        """Commit messages one by one, adding each."""
        for message in messages:
            self.append(message)

    def __iadd__(self, messages: Iterable[Message]) -> Self:  # type: ignore[misc, override]
        self.extend(messages)
        return self

    def insert(self, index: Any, message: Message) -> None:
        """Refuse to put a message between others once each is committed in its order."""
        if self.recorder is not None:
            raise TypeError("Messages are committed in order: append() them to env.messages.")
        super().insert(index, message)

    def user(self, content: str, **fields: Any) -> None:
        """Append a user message."""
        self.append(Message(USER, content, **fields))

    def assistant(self, content: str | None = None, **fields: Any) -> None:
        """Append an assistant message."""
        self.append(Message(ASSISTANT, content, **fields))

    def tool(self, tool_call_id: str, content: str, **fields: Any) -> None:
        """Append a tool result."""
        self.append(Message(TOOL, content, tool_call_id=tool_call_id, **fields))

    def system(self, text: str | None) -> None:
        """Put this system message in front in place of any other; None takes it away."""
        stored = self.recorder.set_system(text) if self.recorder else None
        if stored is None and text:
            stored = Message(SYSTEM, text)
        self[:] = [message for message in self if message.role != SYSTEM]
        if stored is not None:
            super().insert(0, stored)
