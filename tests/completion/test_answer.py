"""Assembling answers from what providers send, in their several ways."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django.completion.answer import Assembly, parsed
from nexo_django.messages import Message

ISSUER = "openai/gpt-4o"


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def part(index: int | None, id_: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    return {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}


def assembled(*chunks: Any, cost: Decimal | None = None) -> Message:
    assembly = Assembly(ISSUER)
    for each in chunks:
        assembly.add(each)
    return assembly.message(ISSUER, lambda usage: cost)


def called(*parts: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    message = assembled(*[chunk(tool_calls=[each]) for each in parts])
    return [(c.id, c.name, c.arguments) for c in message.calls]


def test_interleaved_pieces_of_parallel_calls() -> None:
    assert called(
        part(0, "a", "weather", '{"city"'),
        part(1, "b", "weather", ""),
        part(1, None, None, '{"city": "Lima"}'),
        part(0, None, None, ': "Oslo"}'),
    ) == [("a", "weather", {"city": "Oslo"}), ("b", "weather", {"city": "Lima"})]


def test_parallel_calls_that_share_an_index() -> None:
    assert called(part(0, "a", "one", "{}"), part(0, "b", "two", '{"x": 1}')) == [
        ("a", "one", {}),
        ("b", "two", {"x": 1}),
    ]


def test_pieces_without_an_index() -> None:
    assert called(
        part(None, "a", "one", '{"x"'), part(None, None, None, ": 1}"), part(None, "b", "two", "")
    ) == [("a", "one", {"x": 1}), ("b", "two", {})]


def test_an_id_that_is_repeated_with_every_piece() -> None:
    assert called(part(0, "a", "one", '{"x"'), part(0, "a", "one", ": 1}")) == [
        ("a", "one", {"x": 1})
    ]


def test_calls_with_the_same_id_or_none_are_told_apart() -> None:
    whole = [part(0, "a", "one", "{}"), part(1, "a", "two", "{}"), part(2, None, "three", "{}")]
    message = assembled(chunk(tool_calls=whole))
    assert [c.id for c in message.calls] == ["a", "a_2", "call"]


def test_arguments_that_come_as_an_object() -> None:
    assert called(part(0, "a", "one", {"x": [1]})) == [("a", "one", {"x": [1]})]


def test_a_call_without_a_name_is_no_call() -> None:
    message = assembled(chunk("stop", content="Hi", tool_calls=[part(0, "a", None, "{}")]))
    assert (message.content, message.tool_calls) == ("Hi", None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ("[]", None),
        ("1", None),
        ('{"a": Infinity}', None),
        ('{"a": ' + "9" * 5000 + "}", None),
        ("[" * 100_000, None),
    ],
)
def test_arguments(text: str, value: Any) -> None:
    assert parsed(text) == value


def test_thinking_blocks_are_kept_in_order() -> None:
    def thinking(**block: Any) -> dict[str, Any]:
        return chunk(thinking_blocks=[{"type": "thinking", **block}])

    message = assembled(
        thinking(thinking="One ", index=0),
        thinking(thinking="two", index=0),
        thinking(thinking="", signature="s1", index=0),
        chunk(thinking_blocks=[{"type": "redacted_thinking", "data": "opaque"}]),
        thinking(thinking="Three", signature="s2", index=2),
        chunk(content="Hello"),
    )
    assert message.reasoning == {
        "issuer": ISSUER,
        "blocks": [
            {"type": "thinking", "thinking": "One two", "signature": "s1"},
            {"type": "redacted_thinking", "data": "opaque"},
            {"type": "thinking", "thinking": "Three", "signature": "s2"},
        ],
    }


def test_signatures_of_calls_are_fields_and_not_part_of_the_id() -> None:
    call = {**part(0, "call_1__thought__c2ln", "one", "{}")}
    message = assembled(chunk(tool_calls=[call]))
    assert message.calls[0].id == "call_1"
    assert message.calls[0].provider_fields == {"thought_signature": "c2ln"}
    call["provider_specific_fields"] = {"thought_signature": "own", "nothing": None}
    message = assembled(chunk(tool_calls=[call]))
    assert message.calls[0].provider_fields == {"thought_signature": "own"}


def test_the_fields_of_a_provider_are_kept() -> None:
    message = assembled(
        chunk(content="Hi", provider_specific_fields={"thought_signatures": ["a"], "x": None}),
        chunk(provider_specific_fields={"thought_signatures": ["b"], "reasoning_content": "r"}),
    )
    assert message.reasoning == {"issuer": ISSUER, "fields": {"thought_signatures": ["a", "b"]}}


@pytest.mark.parametrize(
    ("reported", "counts"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 5, 0, 0, 0)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 3,
            },
            (10, 5, 4, 3, 0),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            (10, 5, 4, 3, 2),
        ),
    ],
)
def test_usage(reported: dict[str, Any], counts: tuple[int, ...]) -> None:
    usage = assembled({"choices": [], "usage": reported}, cost=Decimal("0.5")).usage
    assert usage is not None
    found = (usage.input, usage.output, usage.cached, usage.cache_write, usage.reasoning)
    assert found == counts
    assert (usage.cost, usage.raw) == (Decimal("0.5"), reported)


@pytest.mark.parametrize("reported", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}])
def test_a_report_of_nothing_is_none(reported: Any) -> None:
    assert assembled(chunk("stop", content="Hi"), {"choices": [], "usage": reported}).usage is None


def test_a_refusal_is_what_was_said() -> None:
    assert assembled(chunk(refusal="I "), chunk("stop", refusal="won't.")).content == "I won't."


@pytest.mark.parametrize("chunks", [(), (chunk("stop"),), ({"choices": []},)])
def test_an_empty_answer_is_a_message(chunks: tuple[Any, ...]) -> None:
    message = assembled(*chunks)
    assert (message.content, message.tool_calls, message.reasoning) == ("", None, None)


@settings(deadline=None, max_examples=100)
@given(
    text=st.text(max_size=30),
    calls=st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text()), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1),
    shuffled=st.randoms(),
)
def test_however_it_is_cut_into_pieces(
    text: str, calls: list[Any], sizes: list[int], shuffled: Any
) -> None:
    made = [part(n, f"id{n}", "tool", json.dumps(value)) for n, value in enumerate(calls)]
    whole = assembled(chunk("stop", content=text, tool_calls=made))
    streams = [[chunk(content=piece) for piece in pieces(text, sizes)]]
    for each in made:
        first = {**each, "function": {"name": "tool", "arguments": ""}}
        rest = pieces(each["function"]["arguments"], sizes)
        streams.append(
            [chunk(tool_calls=[first])]
            + [chunk(tool_calls=[part(each["index"], None, None, piece)]) for piece in rest]
        )
    order = [n for n, stream in enumerate(streams) for _ in stream]
    shuffled.shuffle(order)
    cut = assembled(*[streams[n].pop(0) for n in order], chunk("stop"))
    assert cut.content == whole.content
    assert sorted(map(repr, cut.calls)) == sorted(map(repr, whole.calls))
    assert [c.arguments for c in whole.calls] == calls


def pieces(text: str, sizes: list[int]) -> list[str]:
    found = []
    for size in itertools.cycle(sizes):
        if not text:
            return found
        found.append(text[:size])
        text = text[size:]
    return found
