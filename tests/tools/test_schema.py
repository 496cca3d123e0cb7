"""What models are told of a function's parameters, and what becomes of the arguments they give."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from nexo_django.exceptions import ConfigurationError, InvalidArguments
from nexo_django.pipeline import Env
from nexo_django.tools import Tool, tool

if TYPE_CHECKING:
    from nexo_django.pipeline import Env as Turn


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A thing."""

    title: str
    color: Color = Color.RED


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


def properties(made: Tool) -> dict[str, Any]:
    found = made.definition()["function"]["parameters"]["properties"]
    assert isinstance(found, dict)
    return found


@tool
def everything(
    text: str,
    number: int,
    ratio: float,
    flag: bool,
    when: datetime.date,
    price: Decimal,
    color: Color,
    mode: Literal["a", "b"],
    items: list[Item],
    counts: dict[str, int],
    maybe: str | None = None,
) -> str:
    """Take all kinds."""
    return json.dumps([type(v).__name__ for v in (when, price, color, items[0], counts)])


def test_a_schema_holds_what_all_providers_take() -> None:
    schema = everything.parameters
    assert list(schema) == ["type", "properties", "required", "additionalProperties"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == [name for name in schema["properties"] if name != "maybe"]
    text = json.dumps(schema)
    assert "$ref" not in text
    assert "$defs" not in text
    assert properties(everything)["text"] == {"type": "string"}
    assert properties(everything)["color"]["enum"] == ["red", "blue"]
    item = properties(everything)["items"]["items"]
    assert item["properties"]["title"] == {"type": "string"}
    assert item["additionalProperties"] is False
    assert item["required"] == ["title"]


def test_arguments_are_converted() -> None:
    given = {
        "text": 5,
        "number": "5",
        "ratio": 1,
        "flag": "true",
        "when": "2020-01-02",
        "price": "1.10",
        "color": "blue",
        "mode": "a",
        "items": [{"title": "x"}],
        "counts": {"a": "1"},
    }
    assert everything.run(given).content == '["date", "Decimal", "Color", "Item", "dict"]'


def test_the_schema_is_the_same_every_time() -> None:
    again = Tool(everything.fn)
    assert json.dumps(again.definition()) == json.dumps(everything.definition())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"town": 1}, ["city: Field required", "town: Extra inputs", "takes: city, days"]),
        ({"city": "Oslo", "days": "many"}, ["days: Input should be a valid integer"]),
        ({"city": None}, ["city: Input should be a valid string"]),
        ({"city": "Oslo", "days": 9}, ["days: Input should be less than or equal to 7"]),
        ({"city": "Oslo", "p0": "x"}, ["p0: Extra inputs"]),
    ],
)
def test_wrong_arguments_are_told_of_by_name(arguments: dict[str, Any], said: list[str]) -> None:
    @tool
    def weather(city: str, days: Annotated[int, Field(le=7)] = 1) -> str:
        return city

    with pytest.raises(InvalidArguments) as caught:
        weather.run(arguments)
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_no_more_than_ten_mistakes_are_told() -> None:
    @tool
    def take(numbers: list[int]) -> int:
        return len(numbers)

    with pytest.raises(InvalidArguments) as caught:
        take.run({"numbers": ["x"] * 1000})
    assert len(str(caught.value)) < 2000


def test_null_is_taken_where_none_is_the_default() -> None:
    @tool
    def take(city: Annotated[str, "Where."] = None) -> bool:  # type: ignore[assignment]  # noqa: RUF013
        return city is None

    assert properties(take)["city"]["description"] == "Where."
    assert {"type": "null"} in properties(take)["city"]["anyOf"]
    assert take.run({"city": None}).content is True


def test_defaults_are_the_functions_own() -> None:
    marker: list[int] = []

    @tool
    def take(a: int = 3, b: list[int] = marker) -> bool:
        return b is marker and a == 3

    assert properties(take)["a"]["default"] == 3
    assert take.run({}).content is True


def test_names_that_pydantic_keeps_for_itself_are_no_matter() -> None:
    @tool
    def take(schema: str, model_config: str, _hidden: str, copy: str) -> str:
        return schema + model_config + _hidden + copy

    arguments = {"schema": "a", "model_config": "b", "_hidden": "c", "copy": "d"}
    assert list(properties(take)) == list(arguments)
    assert take.run(arguments).content == "abcd"


def test_properties_called_title_or_properties_stay() -> None:
    @tool
    def take(title: str, properties: dict[str, str]) -> str:
        return title

    assert list(properties(take)) == ["title", "properties"]


def test_a_type_inside_itself_stays_a_reference() -> None:
    @tool
    def walk(tree: Tree, item: Item) -> str:
        return tree.children[0].name + item.title

    assert properties(walk)["tree"] == {"$ref": "#/$defs/Tree"}
    assert list(walk.parameters["$defs"]) == ["Tree"]
    given = {"tree": {"name": "a", "children": [{"name": "b"}]}, "item": {"title": "c"}}
    assert walk.run(given).content == "bc"


def test_keywords_leave_the_schema_open() -> None:
    @tool
    def take(a: int, **more: Any) -> dict[str, Any]:
        return more

    assert take.parameters["additionalProperties"] is True
    assert take.run({"a": 1, "b": 2}).content == {"b": 2}


def typed(x: int, where: Env) -> Any:
    return where


def optional(x: int, where: Env | None = None) -> Any:
    return where


def named(x: int, env) -> Any:  # type: ignore[no-untyped-def]
    return env


def context(x: int, context: Any) -> Any:
    return context


def unresolved(x: int, env: Turn) -> Any:
    return env


@pytest.mark.parametrize("function", [typed, optional, named, context, unresolved])
def test_the_env_is_given_and_not_shown(function: Callable[..., Any]) -> None:
    env = Env()
    made = tool(function)
    assert list(properties(made)) == ["x"]
    assert made.run({"x": 1}, env).content is env
    with pytest.raises(InvalidArguments):
        made.run({"x": 1, "env": "forged", "where": "forged", "context": "forged"}, env)


def test_a_context_that_is_text_is_an_argument() -> None:
    @tool
    def take(context: str) -> str:
        return context

    assert take.run({"context": "x"}, Env()).content == "x"


def by_position(a: int, /) -> None: ...


def starred(*a: int) -> None: ...


def method(self: Any, a: int) -> None: ...


def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def callback(a: Callable[[], int]) -> None: ...


def instance(a: Tool) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (by_position, "takes a by position"),
        (starred, "takes a by position"),
        (method, "without its object"),
        (unknown, "type Nowhere of the parameter a"),
        (callback, "JSON can't describe"),
        (instance, "JSON can't describe"),
    ],
)
def test_what_no_model_could_call_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        tool(function)
