"""One system message, in front, written only when it changed."""

from __future__ import annotations

from typing import Any

import pytest

from nexo_django import Env, Message, Pipeline
from nexo_django.exceptions import ConfigurationError
from nexo_django.messages import SYSTEM, USER
from nexo_django.middleware import SystemPrompt
from nexo_django.middleware.system_prompt import DEFAULT
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.memory import MemoryStore
from tests.support import Script

ASK = Message(USER, "go")


def system_of(*args: Any, messages: list[Message] | None = None) -> list[str | None]:
    env = Pipeline().use(SystemPrompt, *args).run(Script()).start(messages or [ASK])
    found = [m.content for m in env.messages if m.role == SYSTEM]
    assert not found or env.messages[0].role == SYSTEM
    return found


@pytest.mark.parametrize(
    ("args", "messages", "found"),
    [
        (("Be brief.",), [ASK], ["Be brief."]),
        (("Be brief.",), [Message(SYSTEM, "Be long."), ASK], ["Be brief."]),
        (("Be brief.",), [ASK, Message(SYSTEM, "Be brief.")], ["Be brief."]),
        (("A.",), [Message(SYSTEM, "A."), Message(SYSTEM, "A."), ASK], ["A."]),
        (("",), [Message(SYSTEM, "Stale."), ASK], []),
        ((" \n",), [ASK], []),
        ((lambda env: f"{len(env.messages)}",), [ASK], ["1"]),
        ((lambda env: None,), [Message(SYSTEM, "Stale."), ASK], []),
        (("nul \x00",), [ASK], ["nul \ufffd"]),
        ((), [ASK], [DEFAULT]),
        ((), [Message(SYSTEM, "Mine."), ASK], ["Mine."]),
    ],
)
def test_the_one_system_message(
    args: tuple[Any, ...], messages: list[Message], found: list[str]
) -> None:
    assert system_of(*args, messages=messages) == found


@pytest.mark.parametrize("text", [3, b"x", ["a"]])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ConfigurationError):
        SystemPrompt(Script(), text)
    with pytest.raises(ConfigurationError):
        system_of(lambda env: text)


def test_nothing_is_written_when_nothing_changed() -> None:
    turn = MemoryStore().chat("SystemPrompt", "unchanged").begin(TurnRequest(ASK))
    written: list[str | None] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(turn, name)

        def set_system(self, text: str | None) -> Message | None:
            written.append(text)
            return turn.set_system(text)

    env = Env()
    env.messages.add(turn.messages)
    env.messages.recorder = Watched()
    try:
        for text in ("One.", "One.", "Two.", "", ""):
            SystemPrompt(lambda env: None, text)(env)
    finally:
        turn.close()
    assert written == ["One.", "Two.", None]
