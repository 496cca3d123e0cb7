"""What a file is, told by its bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django import media, tokens
from tests.files import gif, jpeg, pdf, png, webp

SIZE = {"width": 300, "height": 200}


@pytest.mark.parametrize(
    ("data", "kind", "details"),
    [
        (png(300, 200), "image/png", SIZE),
        (jpeg(300, 200), "image/jpeg", SIZE),
        (gif(300, 200), "image/gif", SIZE),
        (webp(b"VP8X", 300, 200), "image/webp", SIZE),
        (webp(b"VP8L", 300, 200), "image/webp", SIZE),
        (webp(b"VP8 ", 300, 200), "image/webp", SIZE),
        (pdf(3), "application/pdf", {"pages": 3}),
        (b"junk before it\n" + pdf(1), "application/pdf", {"pages": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_bytes_say(data: bytes, kind: str, details: dict[str, int]) -> None:
    found = media.upload("photo.txt", data)
    assert found is not None
    assert (found.media_type, found.details) == (kind, details)
    assert found.part["bytes"] == len(data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("notes", "text/plain"),
        ("notes.md", "text/markdown"),
        ("a.csv", "text/csv"),
        ("a.json", "application/json"),
        ("page.html", "text/html"),
        ("drawing.svg", "image/svg+xml"),
        ("cat.png", "text/plain"),
        ("run.exe", "text/plain"),
    ],
)
def test_a_text_is_what_can_be_read(name: str, kind: str) -> None:
    found = media.upload(name, b"\xef\xbb\xbfhello")
    assert found is not None
    assert (found.media_type, found.name) == (kind, name)
    assert media.is_text(kind)


@pytest.mark.parametrize(
    "data", [b"\x7fELF\x00\x01", b"\xff\xfe\x00", b"PK\x03\x04\x80", b"a\x00b"]
)
def test_what_is_of_no_known_type(data: bytes) -> None:
    assert media.upload("cat.png", data) is None


@given(
    data=st.binary(max_size=80), head=st.sampled_from([png(), jpeg(), gif(), webp(b"VP8X"), b""])
)
def test_any_bytes_are_looked_into(data: bytes, head: bytes) -> None:
    for start in (head, head[: len(data)]):
        found = media.upload("x", start + data)
        if found is not None:
            part = found.part
            assert tokens.count_parts(_message(part)) > 0
            assert media.from_part(part, start + data) == found
            assert media.note(part).startswith("[")


def _message(part: dict[str, Any]) -> Any:
    from nexo_django import Message

    return Message("user", None, parts=(part,))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\secret\\cat.png", "cat.png"),
        ("a\nb]\x00[.png", "a b .png"),
        ("", "file.png"),
        ("/", "file.png"),
        ("x" * 300 + ".png", "x" * 145 + "….png"),
        ("котик.png", "котик.png"),
    ],
)
def test_a_name_is_one_line(name: str, shown: str) -> None:
    assert media.shown_name(name, "image/png") == shown


def test_notes() -> None:
    part = {"name": "cat.png", "media_type": "image/png", "bytes": 120_000}
    assert media.note(part, "no longer shown") == "[image cat.png, 120 kB, no longer shown]"
    assert media.note({**part, "bytes": 1_234_567}) == "[image cat.png, 1.23 MB]"
    assert media.note({**part, "bytes": 12, "media_type": "text/csv"}) == "[file cat.png, 12 bytes]"
    assert media.note({}) == "[file without a name]"


def test_the_estimate_of_an_image_is_by_its_pixels() -> None:
    small, large = (media.upload("x", png(side, side)) for side in (100, 1000))
    assert small is not None
    assert large is not None
    assert tokens.count_parts(_message(small.part)) == 85
    assert tokens.count_parts(_message(large.part)) == 1334
    text = media.upload("x.txt", b"word " * 4000)
    assert text is not None
    assert 3900 < tokens.count_parts(_message(text.part)) < 6000
    paper = media.upload("x", pdf(7))
    assert paper is not None
    assert tokens.count_parts(_message(paper.part)) == 10_500
