"""Model calls against a server that nobody here wrote: npm's @copilotkit/aimock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nexo_django.completion import LiteLLMCompletion
from nexo_django.exceptions import RateLimited
from tests.completion.peers import AIMOCK, needs, running
from tests.completion.support import Weather, told

pytestmark = needs(AIMOCK)
CALLS = [{"name": "weather", "arguments": json.dumps({"city": city})} for city in ("Oslo", "Lima")]
FIXTURES = [
    {
        "match": {"userMessage": "weather", "hasToolResult": True},
        "response": {"content": "Both are sunny."},
    },
    {"match": {"userMessage": "weather"}, "response": {"toolCalls": CALLS}},
    {
        "match": {"userMessage": "limit"},
        "response": {
            "error": {"message": "slow down", "type": "rate_limit_error"},
            "status": 429,
        },
    },
    {
        "match": {"userMessage": "Hello"},
        "response": {"content": "Hello from the mock, in words.", "reasoning": "I should greet."},
    },
]
FORMATS = pytest.mark.parametrize(
    ("model", "path"),
    [
        ("openai/gpt-4o-mini", "/v1"),
        ("anthropic/claude-sonnet-4-5", ""),
        ("gemini/gemini-2.5-flash", "/v1beta"),
    ],
)
STREAMED = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": FIXTURES}))
    options = ("-f", str(folder / "fixtures.json"), "--chunk-size", "5", "--log-level", "warn")
    with running(AIMOCK, *options, port_option="-p", log=folder / "log") as address:
        yield address


@FORMATS
@STREAMED
def test_text_and_reasoning(address: str, asked: Any, model: str, path: str, stream: bool) -> None:
    env = asked("Hello", stream=stream)
    LiteLLMCompletion(model, api_base=address + path, api_key="k", max_retries=0)(env)
    assert env.reply.content == "Hello from the mock, in words."
    assert env.reply.finish_reason == "stop"
    assert env.reply.reasoning["text"] == "I should greet."
    assert env.reply.reasoning["issuer"] == model
    texts = [payload["text"] for payload in told(env, "content")]
    assert "".join(texts) == env.reply.content
    assert (len(texts) > 1) is stream


@FORMATS
@STREAMED
def test_parallel_calls(address: str, asked: Any, model: str, path: str, stream: bool) -> None:
    env = asked("weather please", tools=[Weather()], stream=stream)
    LiteLLMCompletion(model, api_base=address + path, api_key="k", max_retries=0)(env)
    assert [c.arguments for c in env.reply.calls] == [{"city": "Oslo"}, {"city": "Lima"}]
    assert len({c.id for c in env.reply.calls}) == 2


# It does not read the results of tools in the spelling of Gemini's format that litellm writes.
@pytest.mark.parametrize(
    ("model", "path"), [("openai/gpt-4o-mini", "/v1"), ("anthropic/claude-sonnet-4-5", "")]
)
@STREAMED
def test_results_come_back(address: str, asked: Any, model: str, path: str, stream: bool) -> None:
    completion = LiteLLMCompletion(model, api_base=address + path, api_key="k", max_retries=0)
    env = asked("weather please", tools=[Weather()], stream=stream)
    completion(env)
    for call in env.reply.calls:
        env.messages.tool(call.id, "sunny")
    completion(env)
    assert env.reply.content == "Both are sunny."


@FORMATS
@STREAMED
def test_a_rate_limit(address: str, asked: Any, model: str, path: str, stream: bool) -> None:
    completion = LiteLLMCompletion(model, api_base=address + path, api_key="k", max_retries=0)
    with pytest.raises(RateLimited) as caught:
        completion(asked("limit", stream=stream))
    assert caught.value.status == 429
