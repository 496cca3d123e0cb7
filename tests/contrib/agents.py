"""An agent whose model does what the prompt's first word says, in whichever process it runs.

What happened is told in files, in a folder for each session under NEXO_TEST_FOLDER.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nexo_django import Agent, events, tool
from nexo_django.exceptions import BadRequest, ProviderUnavailable
from nexo_django.messages import ASSISTANT, USER, Message, ToolCall, Usage
from nexo_django.pipeline import Env
from tests.durability.forks import until


def folder(instance: str) -> Path:
    """Give the folder of a session, which is made."""
    path = Path(os.environ["NEXO_TEST_FOLDER"]) / instance
    path.mkdir(exist_ok=True)
    return path


def told(instance: str, name: str) -> list[str]:
    """Give the lines that were written under a name."""
    path = folder(instance) / name
    return path.read_text().splitlines() if path.exists() else []


def tell(instance: str, name: str, line: Any = "") -> None:
    """Write a line, whole even when several processes write."""
    with (folder(instance) / name).open("a") as file:
        file.write(f"{line}\n")


def open_gate(instance: str) -> None:
    """Let the session's model answer."""
    (folder(instance) / "gate").touch()


@tool
def effect(instance: str) -> str:
    """Do something that must not be done twice."""
    tell(instance, "effects", os.getpid())
    return "done"


class Played(Agent):
    """Plays its prompts."""

    name = "Played"
    tools = (effect,)

    def completion(self) -> Any:
        return play


def play(env: Env) -> None:
    """Answer the last prompt."""
    instance = env.metadata["context"].instance_id
    last = max(i for i, message in enumerate(env.messages) if message.role == USER)
    verb, _, rest = (env.messages[last].content or "").partition(" ")
    step = sum(message.role == ASSISTANT for message in env.messages[last:])
    tell(instance, "asked", f"{verb} {step} {os.getpid()}")
    VERBS[verb](env, instance, rest, step)


def _say(env: Env, instance: str, text: str, step: int) -> None:
    for word in text.split():
        env.emit(events.CONTENT, {"text": word})
    env.messages.append(Message(ASSISTANT, text, usage=Usage(input=10, output=5)))


def _gate(env: Env, instance: str, text: str, step: int) -> None:
    until((folder(instance) / "gate").exists, "the gate", 240)
    _say(env, instance, text, step)


def _effect(env: Env, instance: str, text: str, step: int) -> None:
    if step:
        return _gate(env, instance, text, step)
    calls = (ToolCall("call_1", "effect", {"instance": instance}),)
    env.messages.append(Message(ASSISTANT, None, tool_calls=calls, usage=Usage(input=9, output=9)))


def _flaky(env: Env, instance: str, text: str, step: int) -> None:
    if len(told(instance, "asked")) < 3:
        raise ProviderUnavailable("The provider is down.", retry_after=0.1)
    _say(env, instance, text, step)


def _refused(env: Env, instance: str, text: str, step: int) -> None:
    raise BadRequest("The provider refused the request.")


def _later(env: Env, instance: str, text: str, step: int) -> None:
    """Be refused, unless asked again."""
    if len(told(instance, "asked")) == 1:
        raise BadRequest("The provider refused the request.")
    _say(env, instance, text, step)


def _hang(env: Env, instance: str, text: str, step: int) -> None:
    """Take longer than any limit, unless tried again."""
    if len(told(instance, "asked")) == 1:
        time.sleep(240)
    _say(env, instance, text, step)


def _deaf(env: Env, instance: str, text: str, step: int) -> None:
    """Hang, and go on hanging when the soft limit comes."""
    if len(told(instance, "asked")) == 1:
        with suppress(Exception):
            time.sleep(240)
        time.sleep(240)
    _say(env, instance, text, step)


def _poison(env: Env, instance: str, text: str, step: int) -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), 9)


VERBS: dict[str, Callable[[Env, str, str, int], None]] = {
    "say": _say,
    "gate": _gate,
    "effect": _effect,
    "flaky": _flaky,
    "refused": _refused,
    "later": _later,
    "hang": _hang,
    "deaf": _deaf,
    "poison": _poison,
}
