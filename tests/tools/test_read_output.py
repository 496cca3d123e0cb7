"""A model can read any part of what was kept, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django import conf
from nexo_django.exceptions import InvalidArguments, ToolError
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_text
from nexo_django.tools import read_output
from nexo_django.truncation import page


class Turn:
    """A turn that kept one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def output(self, output_id: str) -> str | None:
        return self.text if output_id == "kept" else None


def read(text: str, **arguments: Any) -> Any:
    return read_output.run({"id": "kept", **arguments}, Env(turn=Turn(text)))


TEXTS = st.one_of(
    st.text(max_size=500),
    st.lists(st.text(max_size=30), max_size=60).map("\n".join),
    st.tuples(st.text(min_size=1, max_size=5), st.integers(1, 4000)).map(lambda t: t[0] * t[1]),
).map(clean_text)


@settings(deadline=None, max_examples=50)
@given(TEXTS, st.integers(1, 50))
def test_page_by_page_it_is_the_original(text: str, limit: int) -> None:
    offset: int | None = 0
    parts = []
    while offset is not None:
        part = page(text, offset, limit)
        shown = read(text, offset=offset, limit=limit)
        assert shown.truncated
        assert shown.text == part.shown("kept")
        assert shown.text.startswith(part.text)
        parts.append(part.text)
        if part.next_offset is not None:
            assert f'read_output(id="kept", offset={part.next_offset})' in shown.text
        offset = part.next_offset
    assert "".join(parts) == text


def test_it_finds_lines() -> None:
    text = "\n".join(f"{n} {'Needle' if n % 7 == 3 else 'hay'}" for n in range(20))
    shown = read(text, grep="needle").text
    assert shown.splitlines()[:3] == ["3: 3 Needle", "10: 10 Needle", "17: 17 Needle"]


def test_it_stays_within_the_caps() -> None:
    text = "x" * 200_000 + "\n" + "y\n" * 100_000
    offset: int | None = 0
    while offset is not None and offset < 5000:
        shown = read(text, offset=offset, limit=100_000)
        assert len(shown.text.encode()) <= conf.get("TRUNCATE_BYTES")
        offset = page(text, offset, 100_000).next_offset


@pytest.mark.parametrize("turn", [None, Turn("x")])
def test_what_is_not_there_is_said(turn: Any) -> None:
    with pytest.raises(ToolError, match="no output 'other' in this session"):
        read_output.run({"id": "other"}, Env(turn=turn))


@pytest.mark.parametrize("arguments", [{}, {"id": "kept", "from": 3}, {"id": "kept", "limit": "x"}])
def test_wrong_arguments_are_said(arguments: Any) -> None:
    with pytest.raises(InvalidArguments):
        read_output.run(arguments, Env(turn=Turn("x")))


def test_numbers_out_of_range_give_what_is_nearest() -> None:
    assert read("a\nb\n", offset=-5, limit=0).text.startswith("a\n[More")
    assert read("a\nb\n", offset=99).text.startswith("[End of the output")
