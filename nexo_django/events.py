"""What a turn tells while it runs: names, the event value, and the sink that hands them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CONTENT = "content"
REASONING = "reasoning"
TOOL_CALL = "tool_call"
TOOL_RESULT = "tool_result"
DONE = "done"
TURN_LIMIT_EXCEEDED = "turn_limit_exceeded"
COMPACTED = "compacted"
TRUNCATED = "truncated"
APPROVAL_REQUESTED = "approval_requested"
QUESTION = "question"
RETRY = "retry"
ERROR = "error"

# What a session's `on_event` and its stream give; the hooks below stay inside the stack.
EVENTS = (
    CONTENT,
    REASONING,
    TOOL_CALL,
    TOOL_RESULT,
    DONE,
    TURN_LIMIT_EXCEEDED,
    COMPACTED,
    TRUNCATED,
    APPROVAL_REQUESTED,
    QUESTION,
    RETRY,
    ERROR,
)

TURN_START = "turn_start"
TURN_END = "turn_end"
BEFORE_LLM = "before_llm"
AFTER_LLM = "after_llm"
LLM_FAILURE = "llm_failure"
BEFORE_TOOL = "before_tool"
APPROVE_TOOL = "approve_tool"
AFTER_TOOL = "after_tool"
COMPACT_START = "compact_start"
COMPACT_LAYER = "compact_layer"
COMPACT_END = "compact_end"
COMPACT_FAILURE = "compact_failure"

# What only `Pipeline.on()` hears.
HOOKS = (
    TURN_START,
    TURN_END,
    BEFORE_LLM,
    AFTER_LLM,
    LLM_FAILURE,
    BEFORE_TOOL,
    APPROVE_TOOL,
    AFTER_TOOL,
    COMPACT_START,
    COMPACT_LAYER,
    COMPACT_END,
    COMPACT_FAILURE,
)

OnEvent = Callable[[str, dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a turn; the payload is JSON-safe."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)


class Events(list[Event]):
    """The events of one turn, in order, and those who listen to them.

    A listener is called with `(type, payload)` in the thread that emits. What it raises
    ends the turn: an abort signal must not be swallowed on its way.
    """

    def __init__(self, *listeners: OnEvent, keep: bool = True) -> None:
        super().__init__()
        self.listeners = list(listeners)
        self.keep = keep

    def emit(self, type: str, payload: dict[str, Any]) -> None:
        """Keep an event and tell every listener."""
        if self.keep:
            self.append(Event(type, payload))
        for listener in self.listeners:
            listener(type, payload)
