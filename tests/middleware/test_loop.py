"""The loop, and its hard stop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nexo_django import Env, Pipeline, ToolCall
from nexo_django.exceptions import ConfigurationError, LimitExceeded
from nexo_django.messages import ASSISTANT, TOOL, USER, Message
from nexo_django.middleware import DefaultToolPipeline, Loop, MaxIterations, ToolResultLoop
from tests.support import Script, asking, call


def look(n: int = 0) -> str:
    """Look."""
    return f"seen {n}"


def endless(env: Env) -> None:
    env.messages.append(asking(call("look")))


def stack(app: Any, *limit: Any) -> Pipeline:
    return (
        Pipeline()
        .use(ToolResultLoop)
        .use(MaxIterations, *limit)
        .use(DefaultToolPipeline, tools=[look])
        .run(app)
    )


def test_the_loop_goes_on_until_the_model_answers() -> None:
    script = Script(asking(call("look", n=1)), asking(call("look", n=2)), "two things")
    env = stack(script).start("go")
    assert [m.role for m in env.messages] == [USER, ASSISTANT, TOOL, ASSISTANT, TOOL, ASSISTANT]
    assert env.reply is not None
    assert env.reply.content == "two things"
    assert env.current_iteration == 3


def test_the_loop_stops_when_it_should_exit() -> None:
    def once(env: Env) -> None:
        env.should_exit = True
        endless(env)

    env = stack(once).start("go")
    assert env.messages[-1].role == TOOL
    assert env.current_iteration == 1


def test_a_condition_decides() -> None:
    env = Pipeline().use(Loop, lambda env: len(env.messages) < 4).run(Script()).start("go")
    assert len(env.messages) == 4
    assert env.current_iteration == 3


def test_a_loop_without_a_condition_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Loop(Script(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_stops_before_the_call_that_is_too_many(limit: int) -> None:
    env = stack(endless, limit).start("go")
    assert [m.role for m in env.messages] == [USER, *[ASSISTANT, TOOL] * limit]
    assert env.metadata["status"] == "turn_limit"
    assert env.should_exit
    last = env.events[-1]
    assert (last.type, last.payload) == (
        "turn_limit_exceeded",
        {"turns": limit, "max_turns": limit},
    )
    assert [event.type for event in env.events].count("turn_limit_exceeded") == 1


def test_the_last_call_that_is_allowed_may_answer() -> None:
    env = stack(Script(asking(call("look")), "done"), 2).start("go")
    assert env.has_reply
    assert "status" not in env.metadata


def test_the_envs_own_limit_goes_first() -> None:
    env = stack(endless, 50).start("go", max_turns=2)
    assert env.events[-1].payload == {"turns": 2, "max_turns": 2}


@pytest.mark.parametrize("limit", [0, -1, "3", None, True, 2.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError):
        MaxIterations(endless, limit)


def test_the_deadline_is_seen_between_steps() -> None:
    def late(env: Env) -> None:
        endless(env)
        env.deadline = time.monotonic() - 1

    with pytest.raises(LimitExceeded):
        stack(late).start("go")


def test_a_turn_that_goes_on_runs_open_calls_before_it_asks() -> None:
    script = Script("done")
    started = [Message(USER, "go"), Message(ASSISTANT, tool_calls=[ToolCall("a", "look")])]
    env = stack(script).start(started)
    assert [m.role for m in script.requests[0]] == [USER, ASSISTANT, TOOL]
    assert [event.type for event in env.events][:2] == ["tool_call", "tool_result"]
    assert env.has_reply
