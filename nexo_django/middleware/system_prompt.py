"""The one system message of a turn."""

from __future__ import annotations

from collections.abc import Callable

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.messages import SYSTEM
from nexo_django.pipeline import App, Env
from nexo_django.sanitize import clean_text

DEFAULT = "You are a helpful assistant."


class SystemPrompt:
    """Put the system message in front, in place of any other; empty text takes it away.

    The text may be a callable that is given the env. What is there already and equal is not
    written again, so that requests keep their prefix. Without a text, a system message that
    is there stays, and a plain one is put where there is none.
    """

    def __init__(self, app: App, text: str | Callable[[Env], str | None] | None = None) -> None:
        if text is not None and not isinstance(text, str) and not callable(text):
            raise ConfigurationError(f"SystemPrompt takes text or a callable, not {brief(text)}.")
        self.app = app
        self.text = text

    def __call__(self, env: Env) -> None:
        there = [m.content for m in env.messages if m.role == SYSTEM]
        text = self._text(env, there)
        in_front = not there or env.messages[0].role == SYSTEM
        if there != ([text] if text else []) or not in_front:
            env.messages.system(text)
        self.app(env)

    def _text(self, env: Env, there: list[str | None]) -> str | None:
        if self.text is None:
            return there[0] if there else DEFAULT
        text = self.text if isinstance(self.text, str) else self.text(env)
        if text is not None and not isinstance(text, str):
            raise ConfigurationError(f"The system prompt's callable gave {brief(text)}, not text.")
        return clean_text(text) if text and text.strip() else None
