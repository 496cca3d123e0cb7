"""What the tests of model calls share: the server, and an env that tells what it heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nexo_django.completion import LiteLLMCompletion
from nexo_django.events import Events
from nexo_django.messages import MessageLog
from nexo_django.pipeline import Env
from tests.completion.server import Wire

SECRET = "sk-a-very-secret-key-0123456789"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as server:
        yield server


@pytest.fixture
def completion(wire: Wire) -> Any:
    def make(model: str = "openai/gpt-4o-mini", **options: Any) -> LiteLLMCompletion:
        given = {"api_base": wire.url, "api_key": SECRET, "timeout": 60, **options}
        return LiteLLMCompletion(model, **given)

    return make


@pytest.fixture
def asked() -> Any:
    def make(text: str = "Hello", **fields: Any) -> Env:
        env = Env(messages=MessageLog(), events=Events(), **fields)
        env.messages.user(text)
        return env

    return make
