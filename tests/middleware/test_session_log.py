"""Where a turn's messages come from and go to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nexo_django import Env, Message, Pipeline, ToolCall
from nexo_django.exceptions import SessionBusy
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, USER
from nexo_django.middleware import (
    DefaultToolPipeline,
    MaxIterations,
    SessionLog,
    SystemPrompt,
    ToolResultLoop,
)
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.memory import MemoryStore
from tests.support import Script, asking, call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "session.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def look() -> str:
    """Look."""
    return "seen"


def stack(app: Any, **options: Any) -> Pipeline:
    return (
        Pipeline()
        .use(SessionLog, **options)
        .use(SystemPrompt, "You are a test.")
        .use(ToolResultLoop)
        .use(MaxIterations, 3)
        .use(DefaultToolPipeline, tools=[look])
        .run(app)
    )


def test_the_second_turn_sees_the_first(path: Path) -> None:
    script = Script("Hello Nathan.", "Nathan.")
    agent = stack(script, path=path)
    agent.start("My name is Nathan.")
    env = agent.start("What's my name?")
    assert [m.content for m in script.requests[1]] == [
        "You are a test.",
        "My name is Nathan.",
        "Hello Nathan.",
        "What's my name?",
    ]
    assert [m.role for m in env.messages] == [SYSTEM, USER, ASSISTANT, USER, ASSISTANT]


def test_a_message_a_line_without_the_system(path: Path) -> None:
    env = stack(Script(asking(call("look")), "done"), path=path).start("go")
    written = lines(path)
    assert [line["role"] for line in written] == [USER, ASSISTANT, TOOL, ASSISTANT]
    assert [Message.from_dict(line) for line in written] == env.messages[1:]


def test_a_message_is_in_the_file_as_soon_as_it_is_there(path: Path) -> None:
    seen: list[list[str]] = []

    def answer(env: Env) -> str:
        seen.append([line["role"] for line in lines(path)])
        return "done"

    stack(Script(asking(call("look")), answer), path=path).start("go")
    assert seen == [[USER, ASSISTANT, TOOL]]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_turn_that_fails_keeps_what_it_had(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        stack(Script(asking(call("look")), error), path=path).start("go")
    assert [line["role"] for line in lines(path)] == [USER, ASSISTANT, TOOL]
    env = stack(Script("done"), path=path).start("again")
    assert env.has_reply


def test_calls_left_open_are_settled_by_the_next_turn(path: Path) -> None:
    path.parent.mkdir()
    left = [Message(USER, "go"), Message(ASSISTANT, tool_calls=[ToolCall("a", "look")])]
    path.write_text("".join(json.dumps(m.to_dict()) + "\n" for m in left))
    script = Script("done")
    stack(script, path=path).start("again")
    assert [m.role for m in script.requests[0]][1:] == [USER, ASSISTANT, TOOL, USER]
    assert script.requests[0][3].is_error


def test_paths_are_apart_and_a_deleted_file_starts_afresh(path: Path, tmp_path: Path) -> None:
    script = Script()
    stack(script, path=path).start("one")
    stack(script, path=tmp_path / "other.jsonl").start("two")
    path.unlink()
    stack(script, path=str(path)).start("three")
    assert [len(request) for request in script.requests] == [2, 2, 2]


def test_the_limit_is_how_the_turn_ended(path: Path) -> None:
    def endless(env: Env) -> None:
        env.messages.append(asking(call("look")))

    env = stack(endless, path=path).start("go")
    assert env.metadata["status"] == "turn_limit"
    assert len(lines(path)) == 7
    assert stack(Script("done"), path=path).start("on").has_reply


def test_a_log_belongs_to_one_turn_at_a_time(path: Path, settings: Any) -> None:
    settings.NEXO = {**settings.NEXO, "TURN_WAIT": 0}

    def inside(env: Env) -> str:
        with pytest.raises(SessionBusy):
            stack(Script(), path=path).start("me too")
        return "done"

    assert stack(Script(inside), path=path).start("go").has_reply


def test_what_is_added_after_the_turn_is_not_written(path: Path) -> None:
    env = stack(Script(), path=path).start("go")
    env.messages.user("for myself")
    assert len(lines(path)) == 2
    assert env.turn is None


def test_a_session_turn_is_the_recorder() -> None:
    chat = MemoryStore().chat("SessionLog", "in a session")
    first = chat.begin(TurnRequest(Message(USER, "one")))
    stack(Script("1")).start(turn=first)
    first.close()
    turn = chat.begin(TurnRequest(Message(USER, "two")))
    try:
        env = stack(Script(asking(call("look")), "2")).start(turn=turn)
        assert env.messages.recorder is turn
    finally:
        turn.close()
    assert [m.role for m in chat.view()] == [m.role for m in env.messages]
    assert [m.content for m in env.messages if m.role == USER] == ["one", "two"]


def test_without_a_path_it_does_nothing() -> None:
    env = stack(Script("hi")).start("go")
    assert env.messages.recorder is None
    assert env.has_reply
