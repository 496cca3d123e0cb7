"""A body is made text that can be read, in linear time, whatever it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django.fetch.exchange import Answer
from nexo_django.fetch.hosts import target
from nexo_django.fetch.markdown import MAX_TEXT, markdown
from nexo_django.fetch.reading import decoded, told


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a<p>b", "a\n\nb"),
        ("<p>a  \n b <b>c</b><i>d</i> <code>e</code></p>", "a b **c***d* `e`"),
        ("<h2>T</h2>x<br>y", "## T\n\nx\ny"),
        ("<ul><li>a<li>b<ol><li>c</li><li>d</li></ol></ul>", "- a\n- b\n\n  1. c\n  2. d"),
        ("<pre>a\n  b &lt;</pre>", "```\na\n  b <\n```"),
        ("<table><tr><th>a</th><td>b</td></tr><tr><td>c<td>d</tr></table>", "| a | b\n\n | c | d"),
        (
            "<a href=/x?a=1&amp;b>l</a> <a href='javascript:x'>m</a>",
            "[l](http://h.example/x?a=1&b) m",
        ),
        ("<a href='http://o.example/(1)'>l", "[l"),
        ("a<!-- <p>x --><script>if (a<b) {'</p>'}</script><style>x</style>b", "ab"),
        ("<SCRIPT src=x>y</SCRIPT ><p title='>'>z", "z"),
        ("<img alt='a tree' src=x><img src=y>", "[image: a tree]"),
        ("1 < 2 && 3 > 2 </> <", "1 < 2 && 3 > 2 <"),
        ("<!doctype html><?x y>&nbsp;&copy;&#x41;&#65", "\xa0©AA".strip()),
        ("<svg><text>x</text></svg><noscript>y</noscript>z", "z"),
        ("<textarea>a <b></textarea>", "a <b>"),
        ("unfinished <a href='x", "unfinished"),
        ("", ""),
    ],
)
def test_html_is_made_markdown(page: str, text: str) -> None:
    assert markdown(page, "http://h.example/")[1] == text


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(
                [
                    "<",
                    ">",
                    "</",
                    "<a",
                    "<p>",
                    "<li>",
                    "<ul>",
                    "</ul>",
                    "<pre>",
                    "</a>",
                    "<a",
                    "href=x>",
                    "<!--",
                    "-->",
                    "'",
                    '"',
                    "&",
                    "&#",
                    ";",
                    "=",
                    "x",
                    "/",
                    "<script>",
                    "</script>",
                ]
            )
        ).map("".join),
    )
)
def test_any_text_is_read(text: str) -> None:
    title, written = markdown(text, "http://h.example/")
    assert isinstance(title, str)
    assert isinstance(written, str)


@pytest.mark.parametrize(
    "page",
    [
        "<",
        "</",
        "<!",
        "<!--",
        "<a ",
        "<a '",
        '<a "',
        "<a href='x",
        "<script>",
        "</p>",
        "&",
        "&#",
        "=",
        " =",
        "<a href=x></a>",
        "<ul><li>",
        "<a =",
        "<a href= ",
        "<title>",
        "<p\n",
        "\n",
        "\xa0",
        " \n",
        "<pre>",
        "]]>",
    ],
)
def test_it_takes_linear_time(page: str) -> None:
    began = time.process_time()
    written = markdown(page * (1_000_000 // len(page)), "http://h.example/" + "x" * 1500)[1]
    # Anything worse takes minutes.
    assert time.process_time() - began < 30
    assert len(written) < MAX_TEXT + 10_000


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("ä€".encode(), None, "ä€"),
        ("ä€".encode(), "utf-8", "ä€"),
        ("ä".encode("latin-1"), "iso-8859-1", "ä"),
        (b"\x93x\x94", "latin-1", "“x”"),
        (b"\x93x\x94", None, "“x”"),
        ("ä€".encode("utf-16"), None, "ä€"),
        ("ä€".encode("utf-8-sig"), "latin-1", "ä€"),
        ("язык".encode("cp1251"), "windows-1251", "язык"),
        ("<meta charset=koi8-r>язык".encode("koi8-r"), None, "<meta charset=koi8-r>язык"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("x€".encode()[:-1], None, "x\ufffd"),
        (b"abc", "idna", "abc"),
        (b"abc", "zlib", "abc"),
        (b"abc", "unicode_escape", "abc"),
        (b"abc", "no-such\x00", "abc"),
        (b"", None, ""),
    ],
)
def test_characters_are_those_that_are_meant(data: bytes, charset: Any, text: str) -> None:
    assert decoded(data, charset) == text


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=20)))
def test_any_bytes_are_characters(data: bytes, charset: str | None) -> None:
    assert isinstance(decoded(data, charset), str)


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        ("application/json", b'{"a": 1}', '(application/json)\n\n{"a": 1}'),
        ("application/problem+json; charset=utf-8", b"{}", "(application/problem+json)\n\n{}"),
        ("text/csv", b"a,b", "(text/csv)\n\na,b"),
        ("image/png", b"\x89PNG", "(image/png)\nThe body is not text: 4 bytes of image/png"),
        ("", b"<!DOCTYPE html><p>x", "(text/html)\n\nx"),
        ("", b"plain", "(text/plain)\n\nplain"),
        ("", b"\x00\x01", "(application/octet-stream)\nThe body is not text"),
        ("nonsense", b"x", "(text/plain)\n\nx"),
        ("text/html; charset=", b"<p>x", "(text/html)\n\nx"),
        ("text/html", b"", "(text/html)\nThe page has no text."),
    ],
)
def test_a_type_is_told(kind: str, body: bytes, shown: str) -> None:
    answer = Answer(target("http://h.example"), 200, "OK", {"content-type": kind}, body)
    assert told(answer).startswith(f"http://h.example/ answered 200 OK {shown}")


@given(st.text(max_size=100))
def test_any_header_is_a_type(header: str) -> None:
    answer = Answer(target("http://h.example"), 200, "", {"content-type": header}, b"x")
    assert told(answer)
