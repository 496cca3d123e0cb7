"""Where a turn's messages come from and are kept: a session's open turn, or a JSONL file."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nexo_django.exceptions import LeaseLost, TurnCancelled
from nexo_django.pipeline import App, Env

if TYPE_CHECKING:
    from nexo_django.stores.base import OpenTurn


class SessionLog:
    """Put the history before this turn's messages, and commit each that is added.

    In a session the env carries an open turn, which the session settles and closes. With
    `path` the layer opens the log there itself, for the length of the turn; messages reach
    the file as they are produced, so a turn that fails keeps what it had. Without either
    it does nothing.
    """

    def __init__(self, app: App, path: str | os.PathLike[str] | None = None) -> None:
        self.app = app
        self.path = path

    def __call__(self, env: Env) -> None:
        if env.turn is not None:
            _attach(env, env.turn)
            self.app(env)
        elif self.path is not None:
            self._with_file(env, self.path)
        else:
            self.app(env)

    def _with_file(self, env: Env, path: str | os.PathLike[str]) -> None:
        from nexo_django.stores.jsonl import PathLog

        turn = PathLog(path).begin(list(env.messages))
        try:
            _attach(env, turn)
            env.turn = turn
            self.app(env)
        except BaseException as error:
            if not isinstance(error, LeaseLost):
                # That the end can't be stored must not hide why it came.
                with suppress(Exception):
                    turn.finish(_ending(error), type(error).__name__)
            raise
        else:
            turn.finish(str(env.metadata.get("status", "done")))
        finally:
            # The messages outlive the turn; what is added to them later is not of it.
            env.messages.recorder = env.turn = None
            turn.close()


def _attach(env: Env, turn: OpenTurn) -> None:
    env.messages[:] = turn.messages
    env.messages.recorder = turn


def _ending(error: BaseException) -> str:
    if isinstance(error, TurnCancelled):
        return "cancelled"
    return "failed" if isinstance(error, Exception) else "interrupted"
