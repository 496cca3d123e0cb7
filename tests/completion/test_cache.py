"""Prompt caches: what is sent again is the same, and marked where a provider wants that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nexo_django import Agent
from nexo_django.completion import LiteLLMCompletion
from nexo_django.completion.wire import mark_cache, marks_cache
from nexo_django.messages import MessageLog
from nexo_django.pipeline import Env
from tests.completion.server import Act, Wire
from tests.completion.support import Weather

CLAUDE = "anthropic/claude-sonnet-4-5"
USAGE = {
    "input_tokens": 20,
    "cache_read_input_tokens": 3000,
    "cache_creation_input_tokens": 400,
    "output_tokens": 50,
}
MARK = {"type": "ephemeral"}


def says(*blocks: dict[str, Any]) -> Act:
    """Answer in Anthropic's format."""
    reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    body = {**head, "content": list(blocks), "stop_reason": reason, "usage": USAGE}
    return lambda handler, request: handler.send(200, body)


def conversed(wire: Wire, **options: Any) -> Env:
    """Have two turns, the first of them with a tool."""
    asks = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    wire.then(says(asks), says({"type": "text", "text": "Sunny."}))
    wire.then(says({"type": "text", "text": "Also sunny."}))
    completion = LiteLLMCompletion(
        CLAUDE, api_base=wire.url, api_key="k", max_retries=0, timeout=60, **options
    )
    env = Env(messages=MessageLog(), tools=[Weather()])
    env.messages.system("You are terse.")
    env.messages.user("How is the weather in Oslo?")
    completion(env)
    env.messages.tool("toolu_1", "sunny")
    completion(env)
    env.messages.user("And in Lima?")
    completion(env)
    return env


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: unmarked(v) for k, v in value.items() if k != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return sum(v == MARK if k == "cache_control" else marks(v) for k, v in value.items())
    return sum(map(marks, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("cache", [False, True])
def test_each_request_begins_as_the_one_before_it(wire: Wire, cache: bool) -> None:
    conversed(wire, cache=cache)
    assert len(wire.requests) == 3
    for first, second in zip(wire.requests, wire.requests[1:], strict=False):
        # What is not at the end keeps its marks too.
        for part in ("system", "tools"):
            assert json.dumps(first[part]) == json.dumps(second[part])
        before, after = unmarked(first["messages"]), unmarked(second["messages"])
        assert json.dumps(after[: len(before)]) == json.dumps(before)
        assert len(after) > len(before)


def test_the_marks_are_on_the_system_the_tools_and_the_last_message(wire: Wire) -> None:
    conversed(wire, cache=True)
    for request in wire.requests:
        assert marks(request) == 3
        assert request["system"][-1]["cache_control"] == MARK
        assert request["tools"][-1]["cache_control"] == MARK
        assert marks(request["messages"][-1]) == 1


def test_without_the_option_nothing_is_marked(wire: Wire) -> None:
    conversed(wire)
    plain = wire.requests[:]
    assert not any(map(marks, plain))
    conversed(wire, cache=True)
    assert unmarked(wire.requests[3:]) == plain


def test_what_came_from_the_cache_is_recorded(wire: Wire) -> None:
    usage = conversed(wire, cache=True).messages[-1].usage
    assert usage is not None
    assert (usage.input, usage.cached, usage.cache_write) == (3420, 3000, 400)


def test_messages_are_not_changed(wire: Wire) -> None:
    env = conversed(wire, cache=True)
    assert not any(marks(message.to_dict()) for message in env.messages)
    assert not marks(Weather().definition())


def test_who_caches_unasked_is_sent_no_marks(wire: Wire, completion: Any, asked: Any) -> None:
    completion(cache=True)(asked("Hello", tools=[Weather()]))
    assert not marks(wire.requests)


def test_what_is_asked_once_is_not_marked(wire: Wire, asked: Any) -> None:
    wire.then(says({"type": "text", "text": "A summary."}))
    env = asked("Write the summary.", metadata={"once": True})
    LiteLLMCompletion(CLAUDE, api_base=wire.url, api_key="k", timeout=60, cache=True)(env)
    assert not marks(wire.requests)


@pytest.mark.parametrize(
    ("provider", "model", "marked"),
    [
        ("anthropic", CLAUDE, True),
        ("bedrock", "bedrock/anthropic.claude-opus-4-7", True),
        ("bedrock", "bedrock/meta.llama3-70b-instruct-v1:0", False),
        ("openrouter", "openrouter/anthropic/claude-sonnet-4", True),
        ("vertex_ai", "vertex_ai/claude-sonnet-4-5", True),
        ("vertex_ai", "vertex_ai/gemini-2.5-pro", False),
        ("openai", "openai/gpt-4o", False),
    ],
)
def test_who_wants_marks(provider: str, model: str, marked: bool) -> None:
    assert marks_cache(provider, model) is marked


def test_a_message_of_parts_is_marked_on_its_last() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]
    request = {"messages": [{"role": "user", "content": parts}]}
    sent = mark_cache(request)["messages"][0]
    assert marks(sent) == 1
    assert sent["content"][-1]["cache_control"] == MARK
    assert not marks(request)
    assert mark_cache({"messages": []}) == {"messages": []}


def test_an_agent_sets_it_among_its_options() -> None:
    class Cached(Agent):
        model, options = CLAUDE, {"cache": True}

    completion = Cached().completion()
    assert isinstance(completion, LiteLLMCompletion)
    assert completion.cache


@pytest.mark.parametrize("value", [1, {"no-cache": True}, None])
def test_anything_but_yes_and_no_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cache"):
        LiteLLMCompletion(CLAUDE, cache=value)
