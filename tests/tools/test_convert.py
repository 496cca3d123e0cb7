"""What may stand in `tools = [...]`."""

from __future__ import annotations

from typing import Any

import pytest

from nexo_django.exceptions import ConfigurationError
from nexo_django.tools import Tool, as_tool, resolve, tool


def plain(city: str) -> str:
    """Say where."""
    return city


class Look(Tool):
    """Look."""

    def execute(self, city: str) -> str:
        return city


class Duck:
    name = "duck"
    description = "Quack."
    params = {"city": {"type": "string", "desc": "Where."}}

    def call(self, city: str) -> str:
        return city


class Callable:
    name = "callable"

    def __call__(self, city: str) -> str:
        return city


DICT = {"name": "dict", "description": "D.", "params": {"city": "string"}, "execute": plain}
HANDLER = {"name": "handler", "handler": plain}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (plain, "plain"),
        (tool(plain), "plain"),
        (Look, "look"),
        (Look(), "look"),
        (Duck(), "duck"),
        (Callable(), "callable"),
        (DICT, "dict"),
        (HANDLER, "handler"),
        ({"name": "schema", "parameters": SCHEMA, "execute": plain}, "schema"),
    ],
)
def test_as_tool(value: Any, name: str) -> None:
    made = as_tool(value)
    assert isinstance(made, Tool)
    assert made.name == name
    assert list(made.parameters["properties"]) == ["city"]
    assert made.parameters["required"] == ["city"]
    assert made.run({"city": "Oslo"}).content == "Oslo"
    assert as_tool(made) is made


def test_a_plain_function_is_made_a_tool_once() -> None:
    assert as_tool(plain) is as_tool(plain)


def test_a_function_of_its_moment_is_not_kept() -> None:
    def made(answer: str) -> Any:
        def say() -> str:
            return answer

        return say

    say = made("now")
    assert as_tool(say) is not as_tool(say)
    assert as_tool(say).run({}).content == "now"


def test_params_say_type_description_and_whether_they_must_be_there() -> None:
    params = {"a": "string", "b": {"type": "integer", "desc": "How many.", "required": False}}
    made = as_tool({"name": "x", "params": params, "execute": lambda a, b=1: [a, b]})
    assert made.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "integer", "description": "How many."},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_no_params_are_no_arguments() -> None:
    made = as_tool({"name": "x", "params": {}, "execute": lambda: "ok"})
    assert made.parameters["properties"] == {}
    assert made.run({}).content == "ok"


@pytest.mark.parametrize(
    "value", [3, "weather", None, object(), dict, {"name": "x"}, {"execute": plain}, Duck]
)
def test_what_is_no_tool_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        as_tool(value)


def test_resolve_keeps_the_order() -> None:
    assert [made.name for made in resolve([Duck(), plain, Look])] == ["duck", "plain", "look"]
    assert [made.name for made in resolve(each for each in (Duck(), plain))] == ["duck", "plain"]
    assert resolve(None) == []
    assert resolve(()) == []


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'plain'"):
        resolve([plain, tool(plain)])


@pytest.mark.parametrize("name", ["a b", "a.b", "é", "x" * 65, "a\n"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        resolve([Tool(plain, name=name)])


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name="):
        resolve([lambda x: x])
