"""Tools: made of functions and classes, and run."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model

import nexo_django
from nexo_django.exceptions import ConfigurationError, InvalidArguments
from nexo_django.pipeline import Env
from nexo_django.tools import Tool, ToolResult, tool

who: ContextVar[str] = ContextVar("who", default="nobody")


@tool
def weather(city: str) -> str:
    """Current weather in a city."""
    return f"sunny in {city}"


def test_the_decorator_used_bare() -> None:
    assert nexo_django.tool is tool
    assert nexo_django.Tool is Tool
    assert weather.definition() == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Current weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    assert (weather.idempotent, weather.capability) == (False, None)


def test_the_decorator_with_options() -> None:
    @tool(name="look", description="Look it up.", idempotent=True, capability="read")
    def some_function(key: str) -> str:
        """Not this."""
        return key

    assert (some_function.name, some_function.description) == ("look", "Look it up.")
    assert some_function.idempotent
    assert some_function.capability == "read"


def test_a_tool_is_still_the_function() -> None:
    assert weather("Oslo") == "sunny in Oslo"
    assert weather.run({"city": "Oslo"}) == ToolResult("sunny in Oslo")


def test_a_result_is_handed_on_as_it_is() -> None:
    result = ToolResult("cut", truncated=True, output_id="7")
    assert tool(lambda: result).run({}) is result


def test_what_a_tool_raises_passes() -> None:
    @tool
    def broken() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        broken.run({})


def test_an_async_tool_runs_to_its_end() -> None:
    @tool
    async def slow(x: int) -> str:
        await asyncio.sleep(0)
        return f"{x} for {who.get()}"

    who.set("mac")
    assert slow.run({"x": "1"}).content == "1 for mac"


def test_iterators_are_read_to_their_end() -> None:
    @tool
    def some() -> Iterator[int]:
        yield from (1, 2)

    @tool
    async def others() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        yield 2

    assert some.run({}).content == others.run({}).content == [1, 2]


@pytest.mark.django_db
def test_an_async_tool_sees_the_transaction_of_its_caller() -> None:
    get_user_model().objects.create_user(username="mac")

    @tool
    async def names() -> list[str]:
        values = get_user_model().objects.values_list("username", flat=True)
        return await sync_to_async(list)(values)

    assert names.run({}).content == ["mac"]


class Forecast(Tool):
    """Tell the weather of tomorrow."""

    idempotent = True

    def execute(self, city: str, env: Env | None = None) -> str:
        return f"rain in {city}, {env is not None}"


def test_a_class_of_its_own() -> None:
    made = Forecast()
    assert (made.name, made.description) == ("forecast", "Tell the weather of tomorrow.")
    assert made.idempotent
    assert made.run({"city": "Oslo"}, Env()).content == "rain in Oslo, True"


def test_a_class_without_execute_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="execute"):
        Tool()


def test_partials_and_callable_objects() -> None:
    def times(a: int, b: int) -> int:
        """Multiply."""
        return a * b

    class AddOne:
        """Add one."""

        def __call__(self, a: int) -> int:
            return a + 1

    double = Tool(functools.partial(times, b=2))
    assert (double.name, double.description) == ("times", "Multiply.")
    assert double.run({"a": 4}).content == 8
    plus = Tool(AddOne())
    assert (plus.name, plus.description) == ("add_one", "Add one.")
    assert plus.run({"a": "4"}).content == 5


def test_a_wrapped_function_is_described_by_what_it_wraps() -> None:
    def traced(function):  # type: ignore[no-untyped-def]
        @functools.wraps(function)
        def wrapper(*args, **kwargs):  # type: ignore[no-untyped-def]
            return function(*args, **kwargs)

        return wrapper

    @tool
    @traced
    def look(key: str) -> str:
        """Look."""
        return key

    assert look.parameters["properties"] == {"key": {"type": "string"}}
    assert look.run({"key": 1}).content == "1"


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_schema_that_is_given_is_told_as_it_is() -> None:
    made = Tool(lambda a, b=2, env=None: [a, b, env], name="raw", parameters=SCHEMA)
    assert made.parameters == SCHEMA
    env = Env()
    assert made.run({"a": "x"}, env).content == ["x", 2, env]
    with pytest.raises(InvalidArguments, match="a missing"):
        made.run({"b": 1})
    with pytest.raises(InvalidArguments, match="c not known"):
        made.run({"a": "x", "c": 1})


def test_a_bound_method_is_a_tool() -> None:
    class Shop:
        def price(self, item: str) -> str:
            """Give the price."""
            return f"{item}: 3"

    made = tool(Shop().price)
    assert made.name == "price"
    assert list(made.parameters["properties"]) == ["item"]
    assert made.run({"item": "tea"}).content == "tea: 3"
    assert inspect.ismethod(made.fn)


def test_a_name_given_for_the_function_is_refused():
    with pytest.raises(TypeError, match=r"write @tool\(name='n'\)"):
        tool("n")
