"""Properties T1-T11 of truncation and of reading back, on any text and any caps."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nexo_django.truncation import (
    MAX_BYTES,
    MAX_LINE_CHARS,
    MAX_LINES,
    as_text,
    count_lines,
    page,
    truncate,
)
from tests.fuzz import examples

ID = "0b3c1f4e-1111-4222-8333-123456789abc"
CHARACTERS = st.sampled_from(
    [
        "a",
        "bc ",
        "\n",
        "\n\n",
        "\r\n",
        "é",
        "e\u0301",
        "\u0301",
        "中",
        "😀",
        "👨‍👩‍👧",
        "\u2028",
        "\x85",
        "\t",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(CHARACTERS, max_size=400).map("".join),
    st.tuples(CHARACTERS, st.integers(0, 5000)).map(lambda pair: pair[0] * pair[1]),
    st.lists(st.integers(0, 300), max_size=60).map(
        lambda sizes: "\n".join("x" * size for size in sizes)
    ),
)
SHORT = st.lists(CHARACTERS, max_size=150).map("".join) | st.text(max_size=150)
ANY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.binary(max_size=80) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
CAPS = st.fixed_dictionaries(
    {
        "max_lines": st.integers(1, 60),
        "max_bytes": st.integers(4, 2000),
        "max_line_chars": st.integers(1, 300),
    }
)
MARK = re.compile(r" \.\.\.\[[\d,]+ more characters\]$|^\[[\d,]+ more characters\]\.\.\. ")
MODES = st.sampled_from(["head", "tail"])
IDS = st.sampled_from([None, ID])
SETTINGS = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(TEXTS, CAPS, MODES, IDS)
@example("x" * 5000, {"max_lines": 3, "max_bytes": 400, "max_line_chars": 300}, "tail", ID)
def test_the_whole_output_is_within_the_caps_and_stays_as_it_is(text, caps, mode, output_id):
    result = truncate(text, mode=mode, output_id=output_id, **caps)
    assert len(result.text.encode()) <= caps["max_bytes"]
    assert count_lines(result.text) <= caps["max_lines"]
    assert all(len(line) <= caps["max_line_chars"] for line in result.text.split("\n"))
    assert "\x00" not in result.text
    again = truncate(result.text, mode=mode, output_id=output_id, **caps)
    assert (again.text, again.truncated) == (result.text, False)


@SETTINGS
@given(TEXTS, CAPS, MODES)
def test_a_text_is_unchanged_exactly_when_it_is_within_the_caps(text, caps, mode):
    clean = as_text(text)
    within = (
        len(clean.encode()) <= caps["max_bytes"]
        and count_lines(clean) <= caps["max_lines"]
        and all(len(line) <= caps["max_line_chars"] for line in clean.split("\n"))
    )
    result = truncate(text, mode=mode, **caps)
    assert result.truncated is not within
    assert not within or result.text == clean
    assert bool(result.text) == bool(clean)


@SETTINGS
@given(TEXTS, CAPS, MODES, IDS)
def test_what_is_kept_is_one_end_of_the_original(text, caps, mode, output_id):
    clean = as_text(text)
    result = truncate(text, mode=mode, output_id=output_id, **caps)
    assert result.total_bytes == len(clean.encode())
    assert result.total_lines == count_lines(clean)
    assert 0 <= result.kept_bytes <= result.total_bytes
    assert 0 <= result.kept_lines <= result.total_lines
    shown = result.text.split("\n")
    originals = clean.split("\n")
    if mode == "head":
        pairs = zip(shown[: result.kept_lines], originals, strict=False)
        assert all(old.startswith(MARK.sub("", new)) for new, old in pairs)
    else:
        ended = 1 if clean.endswith("\n") else 0
        kept = slice(-result.kept_lines - ended, None)
        pairs = zip(shown[kept], originals[kept], strict=True)
        assert all(old.endswith(MARK.sub("", new)) for new, old in pairs)


@SETTINGS
@given(ANY, MODES)
def test_any_value_gives_a_text(value, mode):
    result = truncate(value, mode=mode)
    result.text.encode()
    assert result.truncated is False


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def test_a_value_that_cannot_be_shown_is_named_by_its_class():
    assert truncate(Hostile()).text == "<Hostile>"
    loop: list = []
    loop.append(loop)
    assert truncate(loop).text


@pytest.mark.parametrize(
    "value", ["a\x00b", "a\ud800b", b"a\xffb"], ids=("nul", "surrogate", "bytes")
)
def test_what_no_store_can_hold_is_replaced(value):
    assert truncate(value).text == "a\ufffdb"


def test_the_documented_caps_hold_by_default():
    assert (MAX_LINES, MAX_BYTES, MAX_LINE_CHARS) == (2000, 51_200, 2000)
    assert truncate("x\n" * 2000).truncated is False
    assert truncate("x\n" * 2001).truncated is True
    assert truncate("x" * 2000).truncated is False
    assert truncate("x" * 2001).truncated is True
    assert truncate("x" * 1023 + "\n" + "y\n" * 100).truncated is False
    assert truncate(("x" * 1023 + "\n") * 50).truncated is False
    assert truncate(("x" * 1023 + "\n") * 50 + "y").truncated is True


def test_lines_end_at_a_newline_and_nowhere_else():
    assert truncate("a\x0bb\x0cc\x1cd\x85e\u2028f\r\n").total_lines == 1


def test_the_tail_keeps_the_end_under_the_byte_cap():
    text = "".join(f"{number:04} {'x' * 94}\n" for number in range(3000))
    result = truncate(text, mode="tail", output_id=ID)
    assert result.text.endswith(f"2999 {'x' * 94}\n")
    assert result.kept_lines > 500
    assert text.endswith(result.text.split("\n", 2)[2])


def test_a_clipped_line_says_how_much_is_missing():
    head = truncate("a" * 3000, output_id=ID)
    assert head.text.startswith("a" * 1900)
    assert f"[{3000 - head.kept_bytes:,} more characters]" in head.text
    tail = truncate("a" * 2999 + "b", mode="tail")
    assert tail.text.endswith("b")


def test_the_hint_names_the_output_and_leads_to_the_rest():
    text = "".join(f"line {number}\n" for number in range(5000))
    result = truncate(text, output_id=ID)
    assert f'read_output(id="{ID}", offset={result.kept_lines}, limit=2000)' in result.text
    assert f'read_output(id="{ID}", grep="text")' in result.text
    rest = page(text, offset=result.kept_lines, limit=1)
    assert rest.text == f"line {result.kept_lines}\n"
    assert "was not kept" in truncate(text).text


def test_the_hint_of_a_clipped_line_leads_back_to_that_line():
    text = "short\n" + "y" * 9000 + "\nend"
    assert "offset=1," in truncate(text, output_id=ID).text


def test_a_text_that_looks_truncated_is_cut_like_any_other():
    text = "[Output truncated: the first 1 of 2 lines are shown, 1 of 2 bytes.]\n" * 3000
    assert truncate(text).truncated


def test_an_accent_stays_with_its_letter_and_an_emoji_whole():
    accents = truncate("e\u0301" * 2000).text.split(" ...[")[0]
    assert accents.endswith("e\u0301")
    family = "👨‍👩‍👧"
    assert truncate(family * 500).text.split(" ...[")[0].removesuffix(family).endswith(family)


def pages(text: str, **options) -> list[str]:
    got, offset = [], 0
    while offset is not None:
        part = page(text, offset, **options)
        assert part.next_offset is None or part.next_offset > offset
        got.append(part.text)
        offset = part.next_offset
    return got


@SETTINGS
@given(TEXTS, st.integers(1, 50), st.integers(300, 2000), st.integers(1, 300))
@example("x" * 4000 + "\ny", 1, 700, 100)
@example("x" * 200 + "\r\n", 1, 700, 100)
def test_paging_gives_the_original(text, limit, max_bytes, max_line_chars):
    got = pages(text, limit=limit, max_bytes=max_bytes, max_line_chars=max_line_chars)
    assert "".join(got) == text
    assert all(len(piece.encode()) <= max_bytes for piece in got if text.isascii())


def test_paging_from_the_hint_makes_the_stored_original_again():
    text = as_text("".join(f"{number} {'é' * (number % 90)}\r\n" for number in range(6000)))
    digest = hashlib.sha256("".join(pages(text)).encode()).digest()
    assert digest == hashlib.sha256(text.encode()).digest()


@SETTINGS
@given(SHORT, st.integers(1, 40), st.integers(1, 60))
def test_an_offset_and_a_page_agree(text, offset, chars):
    rows = pages(text, limit=1, max_line_chars=chars)
    got = page(text, offset, max_line_chars=chars, max_bytes=1_000_000)
    assert got.text == "".join(rows[offset : offset + MAX_LINES])


@SETTINGS
@given(SHORT, st.sampled_from(["a", "bc", "x", "é", "B", "none"]), st.integers(1, 60))
def test_grep_finds_every_row_once_with_its_offset(text, grep, chars):
    rows = pages(text, limit=1, max_line_chars=chars)
    offset, found = 0, []
    while offset is not None:
        part = page(text, offset, 7, grep, max_line_chars=chars)
        found += [int(line.split(":")[0]) for line in part.text.split("\n")[:-1] if ": " in line]
        offset = part.next_offset
    expected = [
        number for number, row in enumerate(rows) if len(grep) == 1 and grep.lower() in row.lower()
    ]
    assert found == sorted(set(found))
    assert len(grep) > 1 or set(expected) <= set(found)


def test_grep_takes_the_text_as_it_is():
    assert page("a.c\nabc\nA.C x\n", grep="a.c").text == "0: a.c\n2: A.C x\n"
    assert page("(((((\n", grep="(((").text == "0: (((((\n"


def test_a_page_says_how_to_go_on():
    assert 'read_output(id="7", offset=2)' in page("a\nb\nc\n", limit=2).shown("7")
    assert page("a\nb\nc").shown("7") == "a\nb\nc\n[End of the output, 3 lines.]"


@pytest.mark.parametrize("offset", [-5, 99], ids=("before", "behind"))
def test_an_offset_outside_the_output_is_no_error(offset):
    assert page("a\nb\n", offset).text in ("", "a\nb\n")


@pytest.mark.parametrize(
    "unit", ["x", "\n", "😀", "\u0301", "x\n", "x" * 1999 + "\n", "\r"], ids=ascii
)
@pytest.mark.parametrize("mode", ["head", "tail"])
def test_a_million_characters_of_anything_are_within_the_caps(unit, mode):
    result = truncate(unit * (1_000_000 // len(unit)), mode=mode, output_id=ID)
    assert result.truncated
    assert len(result.text.encode()) <= MAX_BYTES
    assert count_lines(result.text) <= MAX_LINES
