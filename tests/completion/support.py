"""A tool, a recorder and a look at events, for the tests of model calls."""

from __future__ import annotations

from typing import Any

from nexo_django.exceptions import TurnCancelled
from nexo_django.messages import Message
from nexo_django.pipeline import Env


class Weather:
    """What the completion needs of a tool."""

    name = "weather"

    def definition(self) -> dict[str, Any]:
        """Give the schema."""
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        function = {"name": "weather", "description": "Weather.", "parameters": parameters}
        return {"type": "function", "function": function}


def told(env: Env, kind: str) -> list[Any]:
    return [event.payload for event in env.events if event.type == kind]


class Cancelling:
    """A recorder that stops the turn at its checkpoint, once told to."""

    def __init__(self) -> None:
        self.stop = False

    def append(self, message: Message) -> Message:
        """Take the message."""
        return message

    def checkpoint(self, *, now: bool = False) -> None:
        """Stop the turn when asked to."""
        if self.stop:
            raise TurnCancelled
