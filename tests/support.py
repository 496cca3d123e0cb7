"""What several tests share: a scripted model, and agents that use it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from nexo_django import Agent, Message, Pipeline, ToolCall, Usage, events, transcript
from nexo_django.messages import ASSISTANT
from nexo_django.pipeline import Env

_numbers = itertools.count(1)


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Make a tool call with an id of its own."""
    return ToolCall(f"call_{next(_numbers)}", name, arguments)


def asking(*calls: ToolCall, text: str | None = None) -> Message:
    """Make an assistant message that calls tools."""
    return Message(ASSISTANT, text, tool_calls=calls)


class Script:
    """A terminal app that says what it is told to, and records what it was asked.

    A step is text, a message, an exception to raise, or a callable that takes the env and
    gives one of these. Every request must be one that a provider takes.
    """

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.requests: list[list[Message]] = []

    def __call__(self, env: Env) -> None:
        request = transcript.sendable(env.messages)
        assert transcript.problem(request) is None
        self.requests.append(request)
        step = self.steps.pop(0) if self.steps else "done"
        if callable(step):
            step = step(env)
        if isinstance(step, BaseException):
            raise step
        message = step if isinstance(step, Message) else Message(ASSISTANT, step)
        if message.content:
            for word in message.content.split(" "):
                env.checkpoint()
                env.emit(events.CONTENT, {"text": word})
        if message.usage is None:
            message = message.replace(usage=Usage(input=10, output=5))
        env.messages.append(message)


def make_agent(
    app: Callable[[Env], Any] | None = None, /, name: str = "Scripted", **attributes: Any
) -> type[Agent]:
    """Make an agent whose model is `app`; without one it is the offline model."""
    if app is not None:

        def pipeline(self: Agent) -> Pipeline:
            return Agent.pipeline(self).run(app)

        attributes["pipeline"] = pipeline
    return type(name, (Agent,), {"name": name, "model": "nexo/offline", **attributes})
