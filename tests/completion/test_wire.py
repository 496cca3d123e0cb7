"""What a provider is sent, for each of them."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.completion.wire import to_wire
from nexo_django.messages import Message, ToolCall
from nexo_django.transcript import repaired, sendable
from tests.completion.server import fault

PATTERNS = {
    ("openai", "openai/gpt-4o"): r"[!-~]{1,64}",
    ("anthropic", "anthropic/claude-sonnet-4-5"): r"[a-zA-Z0-9_-]{1,64}",
    ("bedrock", "bedrock/anthropic.claude-opus-4-7"): r"[a-zA-Z0-9_-]{1,64}",
    ("vertex_ai", "vertex_ai/claude-sonnet-4-5"): r"[a-zA-Z0-9_-]{1,64}",
    ("openrouter", "openrouter/anthropic/claude-sonnet-4"): r"[a-zA-Z0-9_-]{1,64}",
    ("mistral", "mistral/mistral-large-latest"): r"[a-zA-Z0-9]{9}",
    ("gemini", "gemini/gemini-2.5-flash"): r"[!-~]{1,64}",
    ("moonshot", "moonshot/kimi-k2"): r"[!-~]{1,64}",
}
PROVIDERS = pytest.mark.parametrize(("provider", "model"), list(PATTERNS))
IDS = ["", "call_1", "functions.weather:0", "é" * 10, "x" * 200, "toolu_01A", "a b", "abc123XYZ"]


def step(*ids: str, **fields: Any) -> list[Message]:
    calls = tuple(ToolCall(id_, "weather", {"n": n}) for n, id_ in enumerate(ids))
    results = [Message("tool", f"result {n}", tool_call_id=id_) for n, id_ in enumerate(ids)]
    return [Message("assistant", None, tool_calls=calls, **fields), *results]


@PROVIDERS
def test_ids_fit_and_results_follow_them(provider: str, model: str) -> None:
    messages = [Message("user", "Hello"), *step(*IDS), *step(*IDS), *step("call_1")]
    sent = to_wire(messages, provider, model)
    assert fault({"messages": sent}) is None
    calls = [call for message in sent for call in message.get("tool_calls", ())]
    results = {m["tool_call_id"]: m["content"] for m in sent if m["role"] == "tool"}
    for call in calls:
        assert re.fullmatch(PATTERNS[provider, model], call["id"])
        number = json.loads(call["function"]["arguments"])["n"]
        assert results[call["id"]] == f"result {number}"
    assert len(results) == len(calls)


def test_valid_ids_are_kept() -> None:
    messages = [Message("user", "Hello"), *step("functions.weather:0", "call_1")]
    sent = to_wire(messages, "moonshot", "moonshot/kimi-k2")
    assert [c["id"] for c in sent[1]["tool_calls"]] == ["functions.weather:0", "call_1"]


def test_a_result_without_its_call_is_left_out() -> None:
    messages = [Message("user", "Hello"), Message("tool", "x", tool_call_id="nobody")]
    assert [m["role"] for m in to_wire(messages, "openai", "openai/gpt-4o")] == ["user"]


BLOCKS = [
    {"type": "thinking", "thinking": "First.", "signature": "s1"},
    {"type": "redacted_thinking", "data": "opaque"},
    {"type": "thinking", "thinking": "Then.", "signature": "s2"},
]


def replayed(reasoning: dict[str, Any], provider: str, model: str, **fields: Any) -> dict[str, Any]:
    message = Message("assistant", "Yes.", reasoning=reasoning, **fields)
    return to_wire([Message("user", "Hello"), message], provider, model)[1]


def test_reasoning_goes_back_whole_to_its_issuer() -> None:
    model = "anthropic/claude-sonnet-4-5"
    reasoning = {"issuer": model, "text": "First.Then.", "blocks": BLOCKS}
    assert replayed(reasoning, "anthropic", model)["thinking_blocks"] == BLOCKS
    text = {"issuer": "deepseek/deepseek-reasoner", "text": "Hm."}
    sent = replayed(text, "deepseek", "deepseek/deepseek-reasoner")
    assert sent["reasoning_content"] == "Hm."
    items = {"issuer": "openai/gpt-5", "items": [{"id": "rs_1"}]}
    assert replayed(items, "openai", "openai/gpt-5")["reasoning_items"] == [{"id": "rs_1"}]
    fields = {"issuer": "gemini/gemini-3-pro", "fields": {"thought_signatures": ["x"]}}
    sent = replayed(fields, "gemini", "gemini/gemini-3-pro")
    assert sent["provider_specific_fields"] == {"thought_signatures": ["x"]}


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "openai/gpt-4o"),
        ("anthropic", "anthropic/claude-opus-4-7"),
        ("bedrock", "bedrock/claude-sonnet-4-5"),
        ("deepseek", "deepseek/deepseek-reasoner"),
    ],
)
def test_reasoning_goes_to_nobody_else(provider: str, model: str) -> None:
    reasoning = {"issuer": "anthropic/claude-sonnet-4-5", "text": "First.", "blocks": BLOCKS}
    assert replayed(reasoning, provider, model) == {"role": "assistant", "content": "Yes."}


def test_a_block_without_its_signature_takes_all_with_it() -> None:
    model = "anthropic/claude-sonnet-4-5"
    reasoning = {"issuer": model, "blocks": [*BLOCKS, {"type": "thinking", "thinking": "Cut"}]}
    assert "thinking_blocks" not in replayed(reasoning, "anthropic", model)


def test_the_signature_of_a_call_goes_to_its_issuer_only() -> None:
    model = "gemini/gemini-3-pro"
    call = ToolCall("call_1__thought__c2ln", "weather", provider_fields={"thought_signature": "s"})
    message = Message("assistant", None, tool_calls=(call,), model=model)
    history = [Message("user", "Hello"), message, Message("tool", "x", tool_call_id=call.id)]
    (own,) = to_wire(history, "gemini", model)[1]["tool_calls"]
    assert own["id"] == "call_1"
    assert own["provider_specific_fields"] == {"thought_signature": "s"}
    (other,) = to_wire(history, "openai", "openai/gpt-4o")[1]["tool_calls"]
    assert "provider_specific_fields" not in other


@pytest.mark.parametrize(
    ("name", "sent"),
    [("weather", "weather"), ("my tool!", "my_tool_"), ("x" * 99, "x" * 64), ("é", "_")],
)
def test_names_that_a_provider_would_refuse(name: str, sent: str) -> None:
    message = Message("assistant", None, tool_calls=(ToolCall("c", name),))
    wire = to_wire([message], "openai", "openai/gpt-4o")
    assert wire[0]["tool_calls"][0]["function"]["name"] == sent


def test_parts_come_after_the_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    message = Message("user", "Look:", parts=(image,))
    (sent,) = to_wire([message], "openai", "openai/gpt-4o")
    assert sent["content"] == [{"type": "text", "text": "Look:"}, image]
    (sent,) = to_wire([Message("user", None, parts=(image,))], "openai", "openai/gpt-4o")
    assert sent["content"] == [image]


def test_blank_text_parts_are_left_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    blank = {"type": "text", "text": " "}
    both = Message("user", None, parts=(blank, image))
    (sent,) = to_wire([both], "openai", "openai/gpt-4o")
    assert sent["content"] == [image]
    (sent,) = to_wire([Message("user", None, parts=(blank,))], "openai", "openai/gpt-4o")
    assert sent["content"] == "(empty)"


def test_the_order_of_stored_keys_changes_nothing() -> None:
    def sent(arguments: dict[str, Any]) -> str:
        call = ToolCall("c", "weather", arguments)
        return json.dumps(to_wire([Message("assistant", None, tool_calls=(call,))], "openai", "x"))

    assert sent({"a": 1, "b": {"c": 2, "d": 3}}) == sent({"b": {"d": 3, "c": 2}, "a": 1})


def test_calls_that_are_the_same_are_parted_for_google() -> None:
    same = Message("assistant", "Hm.", tool_calls=tuple(twins("a", "b", "c")))
    messages = [Message("user", "Hello"), same, *results("a", "b", "c"), Message("user", "Bye")]
    sent = to_wire(messages, "gemini", "gemini/gemini-2.5-flash")
    assert [m["role"] for m in sent] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
    ]
    assert [m["content"] for m in sent if m["role"] == "assistant"] == ["Hm.", None, None]
    assert [m["content"] for m in sent if m["role"] == "tool"] == ["of a", "of b", "of c"]
    whole = to_wire(messages, "openai", "openai/gpt-4o")
    assert [m["role"] for m in whole] == ["user", "assistant", "tool", "tool", "tool", "user"]


def twins(*ids: str) -> list[ToolCall]:
    return [ToolCall(id_, "weather", {"city": "Oslo"}) for id_ in ids]


def results(*ids: str) -> list[Message]:
    return [Message("tool", f"of {id_}", tool_call_id=id_) for id_ in ids]


def test_mistral_hears_an_answer_between_results_and_the_user() -> None:
    messages = [Message("user", "Hello"), *step("a"), Message("user", "Go on")]
    sent = to_wire(messages, "mistral", "mistral/mistral-large-latest")
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[3]["content"] == "(no answer)"
    resold = to_wire(messages, "openrouter", "openrouter/mistralai/devstral-small")
    assert [m["role"] for m in resold] == [m["role"] for m in sent]


@pytest.mark.parametrize(("name", "sent"), [("9 lives", "_9_lives"), ("-x", "_-x"), ("_x", "_x")])
def test_google_takes_names_that_begin_with_a_letter(name: str, sent: str) -> None:
    message = Message("assistant", None, tool_calls=(ToolCall("c", name, {}),))
    (wire,) = to_wire([message], "gemini", "gemini/gemini-2.5-flash")
    assert wire["tool_calls"][0]["function"]["name"] == sent


texts = st.text(max_size=8)
calls = st.builds(
    ToolCall,
    id=st.sampled_from(IDS),
    name=texts,
    arguments=st.dictionaries(texts, st.floats() | texts, max_size=2),
)
messages = st.lists(
    st.one_of(
        st.builds(Message, st.just("user"), texts),
        st.builds(Message, st.just("system"), texts),
        st.builds(
            Message,
            st.just("assistant"),
            st.none() | texts,
            tool_calls=st.lists(calls, max_size=3).map(tuple),
        ),
        st.builds(Message, st.just("tool"), texts, tool_call_id=st.sampled_from(IDS)),
    ),
    max_size=12,
)


@PROVIDERS
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(history=messages)
def test_any_history_is_sent_valid_and_the_same_again(
    provider: str, model: str, history: list[Message]
) -> None:
    valid = sendable(repaired([Message("user", "Hello"), *history]))
    before = copy.deepcopy(valid)
    sent = to_wire(valid, provider, model)
    assert fault({"messages": sent}) is None
    assert json.dumps(sent).encode() == json.dumps(to_wire(valid, provider, model)).encode()
    assert json.dumps(sent, ensure_ascii=False).encode()
    assert valid == before
    for end in range(len(valid)):
        if valid[end].role != "tool":
            earlier = to_wire(valid[:end], provider, model)
            assert earlier == sent[: len(earlier)]
