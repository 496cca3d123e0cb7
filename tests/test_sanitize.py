"""What the stores' gate lets through, and what it replaces."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.messages import ASSISTANT, Message, ToolCall, Usage
from nexo_django.sanitize import MAX_DEPTH, MAX_TOKENS, clean_json, clean_message, clean_text

PLAIN = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
# Hypothesis leaves surrogates out unless they are asked for.
ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text()
GOOD_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | GOOD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(GOOD_TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain née 中文 🧑‍🚀", "plain née 中文 🧑‍🚀"),
        ("", ""),
        ("a\x00b", "a\ufffdb"),
        ("half \ud83d here", "half \ufffd here"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83e\uddd1", "\U0001f9d1"),
        ("\x1b[31m\t\r\n", "\x1b[31m\t\r\n"),
    ],
)
def test_clean_text(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


def test_clean_text_gives_good_text_back_itself() -> None:
    text = "x" * 1000
    assert clean_text(text) is text


@PLAIN
@given(ANY_TEXT)
def test_cleaned_text_can_be_stored_anywhere(text: str) -> None:
    cleaned = clean_text(text)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) == cleaned


@PLAIN
@given(JSON)
def test_json_comes_back_equal(value: Any) -> None:
    assert clean_json(value) == value


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (math.nan, "NaN"),
        ([math.inf, -math.inf], ["Infinity", "-Infinity"]),
        ({1: "a", None: "b", "n\x00": "c"}, {"1": "a", "None": "b", "n\ufffd": "c"}),
        ((1, {"b", "a"}), [1, ["a", "b"]]),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02 00:00:00+00:00"),
        (True, True),
        (10**40, 10**40),
        (2**5000, hex(2**5000)),
    ],
)
def test_clean_json(value: Any, cleaned: Any) -> None:
    assert clean_json(value) == cleaned


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError


def test_an_object_without_a_text_is_named() -> None:
    assert clean_json([Speechless()]) == ["<Speechless>"]


def test_a_set_of_objects_without_a_text_is_a_list() -> None:
    class Mute(Speechless):
        __repr__ = Speechless.__str__

    assert clean_json({Mute()}) == ["<Mute>"]


def test_what_holds_itself_ends() -> None:
    value: list[Any] = [1]
    value += [value, value]
    cleaned = clean_json(value)
    assert cleaned[0] == 1
    assert all(isinstance(part, str) for part in cleaned[1:])


def test_deep_nesting_ends_in_text() -> None:
    value: Any = "core"
    for _ in range(10_000):
        value = [value]
    depth, cleaned = 0, clean_json(value)
    while isinstance(cleaned, list):
        depth, cleaned = depth + 1, cleaned[0]
    assert depth == MAX_DEPTH
    assert isinstance(cleaned, str)


def test_one_object_twice_is_not_inside_itself() -> None:
    shared = {"a": 1}
    assert clean_json([shared, shared]) == [shared, shared]


def test_clean_message_reaches_every_field() -> None:
    call = ToolCall("i\x00", "n\x00", {"k\x00": "\ud800"}, raw_arguments="\x00")
    message = Message(
        ASSISTANT,
        "\x00",
        tool_calls=(call,),
        parts=({"type": "image", "url": "\x00"},),
        reasoning={"text": math.nan},
        usage=Usage(input=3, cost=Decimal("0.1"), raw={"x": math.inf}),
        extra={"e": "\x00"},
        position=4,
    )
    cleaned = clean_message(message)
    text = json.dumps(cleaned.to_dict(), allow_nan=False)
    assert "\\u0000" not in text
    assert "\\ud800" not in text
    assert cleaned.usage is not None
    assert (cleaned.usage.input, cleaned.usage.cost) == (3, Decimal("0.1"))
    assert cleaned.position == 4


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (5, 5),
        (-5, 0),
        (None, 0),
        (1.5, 1),
        (True, 1),
        ("7", 7),
        ("many", 0),
        (math.nan, 0),
        (math.inf, 0),
        (2**70, MAX_TOKENS),
    ],
)
def test_counts_of_a_usage_are_counts(given: Any, cleaned: int) -> None:
    message = clean_message(Message(ASSISTANT, "hi", usage=Usage(input=given, output=given)))
    usage = message.usage
    assert usage is not None
    assert (usage.input, usage.output, type(usage.input)) == (cleaned, cleaned, int)


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (None, None),
        (Decimal("0.10"), Decimal("0.10")),
        (Decimal(0), Decimal(0)),
        (0.1, Decimal("0.1")),
        (2, Decimal(2)),
        ("0.25", Decimal("0.25")),
        ("free", None),
        (True, None),
        (object(), None),
        (Decimal("NaN"), None),
        (Decimal("sNaN"), None),
        (math.nan, None),
        (Decimal("Infinity"), None),
        (Decimal(-1), None),
        (Decimal(10) ** 8, None),
        (Decimal("99999999.9"), Decimal("99999999.9")),
    ],
)
def test_the_cost_of_a_usage_can_be_summed_or_is_not_known(
    given: Any, cleaned: Decimal | None
) -> None:
    usage = clean_message(Message(ASSISTANT, "hi", usage=Usage(1, 1, cost=given))).usage
    assert usage is not None
    assert usage.cost == cleaned
    assert isinstance(usage.cost, Decimal | None)


def test_the_raw_usage_is_json() -> None:
    usage = clean_message(Message(ASSISTANT, usage=Usage(raw={"a": {1}, "b": math.nan}))).usage
    assert usage is not None
    assert usage.raw == {"a": [1], "b": "NaN"}


def test_clean_message_keeps_what_is_clean() -> None:
    message = Message(ASSISTANT, "hi", tool_calls=[ToolCall("a", "f", {"x": [1]})])
    assert clean_message(message) == message
