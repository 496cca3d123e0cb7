"""An agent that does what its prompt says; files are the gates that it waits at."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from nexo_django import Agent, events, tool
from nexo_django.exceptions import RateLimited
from nexo_django.messages import ASSISTANT, INTERRUPTED, USER, Message, ToolCall, Usage
from nexo_django.pipeline import Env

LONGEST = 120.0
DRIP = float(os.environ.get("NEXO_TEST_DRIP", "0.05"))


def gate(name: str) -> Path:
    """Give the file whose presence opens a gate."""
    return Path(os.environ["NEXO_TEST_FOLDER"]) / name


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


@tool(capability="write")
def save(name: str) -> str:
    """Save something, which somebody has to approve."""
    return f"saved {name}"


class Web(Agent):
    """Says what it is told to, asks its tools, waits at gates and fails."""

    name = "Web"
    tools = (double, save, "question")
    permissions = "approve"

    def completion(self) -> Any:
        return play


class Secret(Agent):
    """Is registered, and shown to nobody."""

    name = "Secret"
    model = "nexo/offline"


def play(env: Env) -> None:
    """Answer the last prompt."""
    last = max(i for i, message in enumerate(env.messages) if message.role == USER)
    verb, _, rest = (env.messages[last].content or "").partition(" ")
    step = sum(message.role == ASSISTANT for message in env.messages[last:])
    if verb == "double" and not step:
        calls = tuple(
            ToolCall(f"call_{n}", "double", {"number": int(word)})
            for n, word in enumerate(rest.split())
        )
        env.messages.append(Message(ASSISTANT, None, tool_calls=calls, usage=Usage(9, 9)))
    elif verb in ("save", "ask") and not step:
        names = {"save": ("save", "name"), "ask": ("question", "text")}
        tool_name, argument = names[verb]
        calls = tuple(
            ToolCall(f"call_{n}", tool_name, {argument: word})
            for n, word in enumerate(rest.split())
        )
        env.messages.append(Message(ASSISTANT, None, tool_calls=calls, usage=Usage(9, 9)))
    elif verb == "fail" and not gate(rest).exists():
        raise RateLimited("Not now.", retry_after=7)
    else:
        _say(env, "" if verb != "drip" else rest, rest)


def _say(env: Env, dripping: str, text: str) -> None:
    """Say a text, or a word every moment until a gate opens."""
    said: list[str] = []
    try:
        until = time.monotonic() + LONGEST
        while dripping and not gate(dripping).exists():
            assert time.monotonic() < until
            _piece(env, said, "drop ")
            time.sleep(DRIP)
        for word in text.split():
            _piece(env, said, f"{word} ")
    except BaseException:
        env.messages.append(Message(ASSISTANT, "".join(said), status=INTERRUPTED))
        raise
    env.messages.append(Message(ASSISTANT, "".join(said), usage=Usage(10, 5)))


def _piece(env: Env, said: list[str], text: str) -> None:
    env.checkpoint()
    said.append(text)
    env.emit(events.CONTENT, {"text": text})
