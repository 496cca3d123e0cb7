"""What a tool returned, as the text that the model reads."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nexo_django.tools import ToolResult
from nexo_django.tools.results import as_result, as_text


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Line:
    start: Point
    note: str


def counting() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("nul \x00", "nul \ufffd"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        ({"é": [1, None]}, '{"é": [1, null]}'),
        (Point(x=1), '{"x": 1}'),
        (Line(Point(x=1), "n"), '{"start": {"x": 1}, "note": "n"}'),
        ([datetime.date(2020, 1, 2), Decimal("1.10")], '["2020-01-02", "1.10"]'),
        ({"a": float("nan")}, '{"a": "NaN"}'),
        (counting(), "[0, 1, 2]"),
        (b"caf\xc3\xa9", "café"),
        (bytearray(b"\xff\x00\x01"), "(3 bytes that are not text)"),
        (gettext_lazy("Yes"), "Yes"),
        ([gettext_lazy("Yes")], '["Yes"]'),
    ],
)
def test_as_text(value: Any, text: str) -> None:
    assert as_text(value) == text


@pytest.mark.django_db
def test_a_queryset_is_a_list() -> None:
    users = get_user_model().objects
    users.create_user(username="mac")
    assert as_text(users.values("username")) == '[{"username": "mac"}]'
    assert as_text(users.all()) == '["mac"]'


def test_what_holds_itself_is_text_still() -> None:
    value: list[Any] = []
    value.append(value)
    assert json.loads(as_text(value)) == ["[[...]]"]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(st.text() | st.floats() | st.binary(), st.lists))
def test_any_value_is_text(value: Any) -> None:
    as_text(value).encode()


def failing() -> Iterator[int]:
    yield 1
    raise ValueError("no second")


class Failing:
    def __iter__(self) -> Iterator[int]:
        return failing()


@pytest.mark.parametrize(
    "value",
    [
        failing(),
        {"a": [failing()]},
        map(int, ["1", "x"]),
        {"rows": map(int, ["1", "x"])},
        Failing(),
        [Failing()],
        Line(failing(), "n"),  # type: ignore[arg-type]
    ],
)
def test_what_fails_when_it_is_read_is_no_text(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no second|invalid literal"):
        as_text(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}.items(), '[["a", 1]]'),
        ({"a": 1}.keys(), '["a"]'),
        ((n for n in range(2)), "[0, 1]"),
        ({"\ud800": 1}, '{"\ufffd": 1}'),
    ],
)
def test_what_is_read_only_when_asked_is_a_list(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_the_text_of_a_result_is_made_once() -> None:
    result = ToolResult(iter("ab")).made()
    assert result.text == result.text == '["a", "b"]'


def test_is_error_is_a_bool() -> None:
    result = ToolResult(None, is_error="yes", truncated=1)  # type: ignore[arg-type]
    assert (result.is_error, result.truncated) == (True, True)


def test_results_are_not_wrapped_twice() -> None:
    result = ToolResult({"a": 1}, is_error=True)
    assert as_result(result) is result
    assert result.text == '{"a": 1}'
    assert as_result("x") == ToolResult("x")
