"""The stack: how it is built, started, listened to and answered by commands."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from nexo_django import Env, Message, Pipeline
from nexo_django.exceptions import LimitExceeded
from nexo_django.messages import ASSISTANT, SYSTEM, USER, MessageLog
from nexo_django.pipeline import App


class Layer:
    """Say when the env comes in and goes out."""

    def __init__(self, app: App, name: str = "layer", *, loud: bool = False) -> None:
        self.app, self.name, self.loud = app, name, loud
        self.calls = 0

    def __call__(self, env: Env) -> None:
        self.calls += 1
        path = env.metadata.setdefault("path", [])
        path.append(f"{self.name}{self.calls} in{'!' if self.loud else ''}")
        self.app(env)
        path.append(f"{self.name}{self.calls} out")


def answer(env: Env) -> str:
    env.messages.assistant(f"{len(env.messages)} so far")
    return "ignored"


def test_layers_wrap_the_app_outermost_first_and_are_built_anew() -> None:
    agent = Pipeline().use(Layer, "a", loud=True).use(Layer, name="b").run(answer)
    for _ in range(2):
        env = agent.start("hi")
        assert env.metadata["path"] == ["a1 in!", "b1 in", "b1 out", "a1 out"]
        assert env.reply is not None
        assert env.reply.content == "1 so far"


def test_a_pipeline_is_an_app() -> None:
    inner = Pipeline().use(Layer, "inner").run(answer)
    env = Pipeline().use(Layer, "outer").run(inner).start("hi")
    assert env.metadata["path"] == ["outer1 in", "inner1 in", "inner1 out", "outer1 out"]


def test_the_app_may_be_given_at_the_start() -> None:
    assert Pipeline().start("hi", app=answer).has_reply
    with pytest.raises(RuntimeError, match=r"\.run\("):
        Pipeline().start("hi")


@pytest.mark.parametrize("value", [None, 3, "app"])
def test_only_callables_are_taken(value: Any) -> None:
    with pytest.raises(TypeError):
        Pipeline().run(value)
    with pytest.raises(TypeError):
        Pipeline().use(value)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, []),
        ("hi", [Message(USER, "hi")]),
        (Message(USER, "hi"), [Message(USER, "hi")]),
        ({"role": "user", "content": "hi"}, [Message(USER, "hi")]),
        (
            [{"role": "system", "content": "s"}, Message(USER, "hi")],
            [Message(SYSTEM, "s"), Message(USER, "hi")],
        ),
        (MessageLog([Message(USER, "hi")]), [Message(USER, "hi")]),
    ],
)
def test_what_a_turn_starts_from(value: Any, found: list[Message]) -> None:
    env = Pipeline().run(lambda env: None).start(value)
    assert env.messages == found
    assert env.reply is None
    assert not env.has_reply


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("", ValueError),
        (" \n", ValueError),
        (b"hi", TypeError),
        (3, TypeError),
        ({"x": 1}, ValueError),
    ],
)
def test_what_a_turn_does_not_start_from(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Pipeline().run(answer).start(value)


def test_the_env_of_each_start_is_fresh() -> None:
    def note(env: Env) -> None:
        env.metadata["seen"] = env.metadata.get("seen", 0) + 1
        answer(env)

    agent = Pipeline().run(note)
    first, second = agent.start("a"), agent.start("b")
    assert first.metadata == second.metadata == {"seen": 1}
    assert first.current_iteration == 1
    assert agent.start("c", model="m", stream=True).model == "m"


def test_listeners_and_hooks_hear_the_same() -> None:
    heard: list[Any] = []

    def told(env: Env) -> None:
        env.emit("content", {"text": "a"}, removed=["not JSON"])

    agent = Pipeline().run(told)
    agent.on("content", lambda env, payload: heard.append(("hook", payload)))
    env = agent.start("hi", on_event=lambda kind, payload: heard.append((kind, payload)))
    assert heard == [
        ("content", {"text": "a"}),
        ("hook", {"text": "a", "removed": ["not JSON"]}),
    ]
    assert [event.payload for event in env.events] == [{"text": "a"}]


def test_hooks_come_in_the_order_they_were_added() -> None:
    heard: list[str] = []
    agent = Pipeline().run(answer)
    agent.on("turn_end", lambda env, payload: heard.append("end"))
    agent.on("turn_start", lambda env, payload: heard.append("first"))
    agent.on("turn_start", lambda env, payload: heard.append("second"))
    agent.start("hi")
    assert heard == ["first", "second", "end"]


def test_the_end_is_told_when_the_stack_raises() -> None:
    def fail(env: Env) -> None:
        raise LookupError("gone")

    heard: list[Env] = []
    agent = Pipeline().run(fail).on("turn_end", lambda env, payload: heard.append(env))
    with pytest.raises(LookupError, match="gone"):
        agent.start("hi")
    assert len(heard) == 1


def test_unknown_events_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="compacted"):
        Pipeline().on("compacting", print)


def test_a_deadline_that_passed() -> None:
    Env(deadline=time.monotonic() + 3600).checkpoint()
    with pytest.raises(LimitExceeded):
        Env(deadline=time.monotonic() - 1).checkpoint()


# Commands.


def cleared(env: Env) -> None:
    env.messages.assistant("cleared")


@pytest.mark.parametrize(
    ("matcher", "text", "matches"),
    [
        ("/clear", "/clear", True),
        ("clear", "/clear now", True),
        ("clear", "/clear\nall", True),
        ("clear", "/clearance", False),
        ("clear", "please /clear", False),
        ("clear", "clear", False),
        ("c.r", "/car", False),
        (re.compile("(?i)reset"), "do RESET it", True),
        (re.compile("^reset"), "do reset", False),
        (lambda text: text.endswith("!"), "now!", True),
        (lambda text: None, "now!", False),
    ],
)
def test_commands_answer_in_place_of_the_stack(matcher: Any, text: str, matches: bool) -> None:
    env = Pipeline().use(Layer).map(matcher, cleared).run(answer).start(text)
    assert env.reply is not None
    assert (env.reply.content == "cleared") is matches
    assert ("path" not in env.metadata) is matches


def test_the_first_command_that_matches_wins() -> None:
    agent = Pipeline().map("x", cleared).map("x", answer).run(answer)
    reply = agent.start("/x").reply
    assert reply is not None
    assert reply.content == "cleared"


def test_a_command_needs_no_app_and_tells_its_hooks() -> None:
    heard: list[str] = []
    agent = Pipeline().map("x", cleared)
    agent.on("turn_start", lambda env, payload: heard.append("start"))
    agent.on("turn_end", lambda env, payload: heard.append("end"))
    assert agent.start("/x").has_reply
    assert heard == ["start", "end"]


@pytest.mark.parametrize(
    "messages",
    [
        [Message(USER, "/x"), Message(ASSISTANT, "/x")],
        [Message(USER, "/x"), Message(USER, "hi")],
        [Message(USER, None, parts=({"type": "image"},))],
        None,
    ],
)
def test_only_the_last_message_is_a_command_and_only_a_users(messages: Any) -> None:
    reply = Pipeline().map("x", cleared).run(answer).start(messages).reply
    assert reply is not None
    assert reply.content != "cleared"
