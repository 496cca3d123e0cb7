"""Agents whose calls wait: for an approval, or for an answer."""

from __future__ import annotations

from typing import Any

from nexo_django import Agent, ToolCall, tool
from tests.support import Script, asking, make_agent

ran: list[str] = []


@tool(capability="write")
def publish(text: str) -> str:
    """Publish a text."""
    ran.append(text)
    return f"published {text}"


@tool
def look(word: str) -> str:
    """Look a word up."""
    ran.append(word)
    return f"{word} is a word"


def publishing(*ids: str) -> list[ToolCall]:
    """Make calls of publish with these ids; each publishes its id."""
    return [ToolCall(id_, "publish", {"text": id_}) for id_ in ids]


def asker(*steps: Any, name: str = "Asker", **attributes: Any) -> type[Agent]:
    """Make an agent that asks for approvals, with its model's words."""
    declared = {"tools": [publish, look, "question"], "permissions": "approve", **attributes}
    return make_agent(Script(*steps), name=name, **declared)


__all__ = ["asker", "asking", "look", "publish", "publishing", "ran"]
