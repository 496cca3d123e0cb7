"""Model calls against a server that nobody here wrote: PyPI's llmock, with its faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nexo_django.completion import LiteLLMCompletion
from nexo_django.exceptions import ContextOverflow, ProviderError, ProviderUnavailable
from tests.completion.peers import LLMOCK, needs, running
from tests.completion.support import Weather, told

pytestmark = needs(LLMOCK)
FORMATS = pytest.mark.parametrize(
    ("model", "path"),
    [("openai/gpt-4o-mini", "/v1"), ("anthropic/claude-sonnet-4-5", "/anthropic")],
)
STREAMED = pytest.mark.parametrize("stream", [False, True])


def _running(tmp: pytest.TempPathFactory, *options: str) -> Any:
    log = tmp.mktemp("llmock") / "log"
    return running(LLMOCK, "serve", *options, port_option="--port", log=log)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _running(tmp_path_factory, "--context-window", "2000") as address:
        yield address


@pytest.fixture(scope="module")
def cutting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _running(tmp_path_factory, "--stream-fault", "truncate=1") as address:
        yield address


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _running(tmp_path_factory, "--error-rate", "503=1") as address:
        yield address


def completion(model: str, base: str, **options: Any) -> LiteLLMCompletion:
    return LiteLLMCompletion(model, api_base=base, api_key="k", **{"max_retries": 0, **options})


@FORMATS
@STREAMED
def test_text_and_usage(address: str, asked: Any, model: str, path: str, stream: bool) -> None:
    env = asked("Hello", stream=stream)
    completion(model, address + path)(env)
    assert env.reply.content.strip()
    assert "".join(p["text"] for p in told(env, "content")) == env.reply.content
    assert env.reply.usage.input > 0
    assert env.reply.usage.output > 0
    assert env.reply.usage.cost > 0


@FORMATS
@STREAMED
def test_a_call_and_its_result(
    address: str, asked: Any, model: str, path: str, stream: bool
) -> None:
    env = asked("What is the weather?", tools=[Weather()], stream=stream)
    completion(model, address + path)(env)
    (call,) = env.reply.calls
    assert call.name == "weather"
    assert "city" in call.arguments
    env.messages.tool(call.id, "sunny")
    completion(model, address + path)(env)
    assert env.reply.content.strip()
    assert not env.reply.calls


@FORMATS
@STREAMED
def test_a_prompt_that_is_too_long(
    address: str, asked: Any, model: str, path: str, stream: bool
) -> None:
    with pytest.raises(ContextOverflow):
        completion(model, address + path)(asked("word " * 20_000, stream=stream))


@FORMATS
def test_a_truncated_stream(cutting: str, asked: Any, model: str, path: str) -> None:
    env = asked("Hello", stream=True)
    with pytest.raises(ProviderError):
        completion(model, cutting + path)(env)
    kept = [m for m in env.messages if m.role == "assistant"]
    assert all(m.status == "interrupted" for m in kept)


@FORMATS
@STREAMED
def test_a_provider_that_is_down(
    failing: str, asked: Any, model: str, path: str, stream: bool
) -> None:
    env = asked("Hello", stream=stream)
    with pytest.raises(ProviderUnavailable):
        completion(model, failing + path, max_retries=1)(env)
    assert len(told(env, "retry")) == 1
