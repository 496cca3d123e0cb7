from __future__ import annotations

import uuid

import pytest

from nexo_django import prompts
from nexo_django.messages import Message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("user-42", "user-42"),
        (42, "42"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ("é" * 191, "é" * 191),
        (" a ", " a "),
    ],
)
def test_an_instance_id_is_its_text(value, text):
    assert prompts.instance_id(value) == text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x" * 300, "300 characters; at most 191"),
        ("a\x00b", "NUL"),
        ("\ud83d", "surrogate"),
    ],
)
def test_a_wrong_instance_id_is_a_value_error(value, says):
    with pytest.raises(ValueError, match=says):
        prompts.instance_id(value)


@pytest.mark.parametrize("value", [None, b"id", True, [], [7], {}, (1,), {2}, str])
def test_an_instance_id_that_has_no_stable_text_is_a_type_error(value):
    with pytest.raises(TypeError, match="give text"):
        prompts.instance_id(value)


def test_a_key_may_be_left_out():
    assert prompts.key(None) is None
    assert prompts.key(7) == "7"
    with pytest.raises(ValueError, match="key is empty"):
        prompts.key("")
    with pytest.raises(TypeError):
        prompts.key(b"k")


IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
SEE, SAW = ({"type": "text", "text": text} for text in ("see", "saw"))


@pytest.mark.parametrize(
    ("value", "content", "parts"),
    [
        ("hi", "hi", None),
        ([SEE], "see", None),
        ([SEE, SAW], "see\nsaw", None),
        ([SEE, IMAGE], "see", (IMAGE,)),
        ([IMAGE], None, (IMAGE,)),
        ([SEE, IMAGE, SAW, IMAGE], None, (SEE, IMAGE, SAW, IMAGE)),
        ([IMAGE, SAW], None, (IMAGE, SAW)),
    ],
)
def test_a_prompt_is_text_or_parts_and_says_nothing_twice(value, content, parts):
    assert prompts.prompt(value, 1000) == Message("user", content, parts=parts)


@pytest.mark.parametrize(
    "value", [None, b"bytes", 5, {"a": 1}, [], [1], [{"text": "no type"}], [{"type": "text"}]]
)
def test_what_is_no_prompt_is_a_type_error(value):
    with pytest.raises(TypeError):
        prompts.prompt(value, 100)


@pytest.mark.parametrize(
    "value",
    ["", "  \n", [{"type": "text", "text": ""}], [{"type": "text", "text": " \n"}] * 2],
)
def test_an_empty_prompt_is_a_value_error(value):
    with pytest.raises(ValueError, match="empty"):
        prompts.prompt(value, 100)


def test_blank_parts_are_left_out_of_a_prompt():
    blank, image = {"type": "text", "text": " "}, {"type": "image", "id": 1}
    said = {"type": "text", "text": "see"}
    assert prompts.prompt([blank, said, image], 1000) == Message("user", "see", parts=(image,))
    assert prompts.prompt([blank, image], 1000) == Message("user", None, parts=(image,))


def test_a_prompt_over_the_limit_names_the_limit_and_the_fix():
    with pytest.raises(
        ValueError, match=r"5,000,000 bytes; this agent takes 1,000,000.*max_prompt_bytes"
    ):
        prompts.prompt("x" * 5_000_000, 1_000_000)
    with pytest.raises(ValueError, match="max_prompt_bytes"):
        prompts.prompt([{"type": "text", "text": "x" * 200}], 100)


def test_a_prompt_is_sanitised():
    assert prompts.prompt("a\x00b\ud83d", 100).content == "a\ufffdb\ufffd"
