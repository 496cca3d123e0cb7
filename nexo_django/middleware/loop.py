"""Running what is inside again, and the hard stop on how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nexo_django import events
from nexo_django.exceptions import ConfigurationError
from nexo_django.messages import TOOL
from nexo_django.pipeline import App, Env

# The turn's status, as stores keep it.
TURN_LIMIT = "turn_limit"


class Loop:
    """Run the inner stack, and again as long as `condition(env)` holds after it."""

    def __init__(self, app: App, condition: Callable[[Env], Any]) -> None:
        if not callable(condition):
            raise ConfigurationError(
                f"Loop takes a condition that takes the env, not {condition!r}."
            )
        self.app = app
        self.condition = condition

    def __call__(self, env: Env) -> None:
        self.app(env)
        while self.condition(env):
            env.checkpoint(now=True)
            env.current_iteration += 1
            self.app(env)


class ToolResultLoop(Loop):
    """Ask the model again for as long as tool results wait for it."""

    def __init__(self, app: App) -> None:
        super().__init__(app, _waits)


class MaxIterations:
    """Stop a turn before the model call that would be one too many.

    Emits `turn_limit_exceeded` and sets the status; it adds nothing to the messages. The
    env's own `max_turns` goes before `max_iterations`.
    """

    def __init__(self, app: App, max_iterations: int = 100) -> None:
        if isinstance(max_iterations, bool) or not isinstance(max_iterations, int):
            raise ConfigurationError(f"max_iterations is {max_iterations!r}; give a number.")
        if max_iterations < 1:
            raise ConfigurationError(f"max_iterations is {max_iterations}; it is at least 1.")
        self.app = app
        self.max_iterations = max_iterations

    def __call__(self, env: Env) -> None:
        limit = self.max_iterations if env.max_turns is None else env.max_turns
        if env.current_iteration <= limit:
            self.app(env)
            return
        env.should_exit = True
        env.metadata["status"] = TURN_LIMIT
        made = env.current_iteration - 1
        env.emit(events.TURN_LIMIT_EXCEEDED, {"turns": made, "max_turns": limit})


def _waits(env: Env) -> bool:
    return not env.should_exit and bool(env.messages) and env.messages[-1].role == TOOL
