"""Names and schemas that providers take, whatever a server gives."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from nexo_django.mcp.names import ANYTHING, MAX_SCHEMA, offered_name, schema

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "$ref",
                    "$defs",
                    "anyOf",
                    "items",
                    "title",
                    "a",
                    "b",
                ]
            )
            | st.text(max_size=4),
            inner | st.sampled_from(["#/$defs/a", "#/", "#", "object", "#/properties/a"]),
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(st.text(min_size=1, max_size=32), st.lists(st.text(max_size=90), unique=True, max_size=12))
def test_every_name_is_one_that_providers_take(server, tools):
    taken: set[str] = set()
    for tool in tools:
        name = offered_name(server, tool, taken)
        assert NAME.fullmatch(name)
        assert name not in taken
        taken.add(name)


def test_a_name_stays_the_same_while_nothing_is_in_its_way():
    assert offered_name("time", "get_current_time", ()) == "time__get_current_time"
    assert offered_name("my.files", "read/all", ()) == "my_files__read_all"
    long = offered_name("s", "x" * 80, ())
    assert len(long) == 64
    assert long == offered_name("s", "x" * 80, ("others",))
    assert offered_name("s", "a.b", ("s__a_b",)) != offered_name("s", "a-b", ("s__a_b",))


@given(JSON)
def test_every_schema_is_one_that_providers_take(value):
    made = schema(value)
    assert made["type"] == "object"
    assert set(made["required"]) <= set(made["properties"])
    text = json.dumps(made, allow_nan=False)
    assert len(text) <= MAX_SCHEMA
    assert '"$ref"' not in text
    assert "anyOf" not in made


def test_references_are_put_in():
    made = schema(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Arguments",
            "type": "object",
            "$defs": {"Point": {"title": "Point", "type": "object", "properties": {"x": {}}}},
            "properties": {
                "title": {"type": "string", "title": "Title"},
                "at": {"$ref": "#/$defs/Point", "description": "Where."},
            },
            "required": ["title", "nowhere"],
            "additionalProperties": False,
        }
    )
    assert made == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "at": {"type": "object", "properties": {"x": {}}, "description": "Where."},
        },
        "required": ["title"],
        "additionalProperties": False,
    }


def test_a_schema_that_holds_itself():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}
    made = schema(
        {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/tree"}},
            "$defs": {"tree": tree},
        }
    )
    assert made["properties"]["root"]["properties"]["left"] == {}


def test_a_schema_that_grows_without_end_is_narrowed():
    bomb = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(12)}
    given = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": bomb}
    assert schema(given) == ANYTHING
    wide = {
        "type": "object",
        "properties": {f"p{n}": {"description": "x" * 100} for n in range(900)},
    }
    assert schema(wide) == ANYTHING
    deep: dict = {}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}}
    assert schema(deep) == ANYTHING
