"""What others wrote is shown in a terminal, never obeyed."""

from __future__ import annotations

import io

import pytest
from django.core.management.base import OutputWrapper
from django.core.management.color import color_style, no_style
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django import events
from nexo_django.management.terminal import Terminal, clean, shorten
from nexo_django.messages import Message, ToolCall


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("née\n\t中文", "née\n\t中文"),
        ("\x1b[2J\x1b]0;title\x07", "\ufffd[2J\ufffd]0;title\ufffd"),
        ("one\r\ntwo\rthree", "one\ntwothree"),
        ("\x9b31m", "\ufffd31m"),
        ("ab\u202ecd\u2066", "ab\ufffdcd\ufffd"),
        ("half \ud83d a pair", "half \ufffd a pair"),
        ("\x00\x7f", "\ufffd\ufffd"),
    ],
)
def test_clean_replaces_what_a_terminal_obeys(text, shown):
    assert clean(text) == shown


@settings(deadline=None)
@given(st.text(), st.integers(1, 60))
def test_shorten_gives_one_clean_line(text, limit):
    line = shorten(text, limit)
    assert len(line) <= limit
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in line)


def terminal(style=None):
    out = io.StringIO()
    return Terminal(OutputWrapper(out), style or no_style()), out


def test_text_streams_and_notes_stand_on_lines_of_their_own():
    shown, out = terminal()
    shown.event(events.CONTENT, {"text": "One mo"})
    shown.event(events.CONTENT, {"text": "ment."})
    shown.event(events.TOOL_CALL, {"id": "1", "name": "weather", "arguments": {"city": "Łódź"}})
    shown.event(
        events.TOOL_RESULT,
        {"id": "1", "name": "weather", "content": "sunny\n" * 500, "is_error": False},
    )
    shown.event(events.CONTENT, {"text": "Sunny."})
    shown.end_line()
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["One moment.", '→ weather {"city": "Łódź"}']
    assert lines[2].startswith("← weather: sunny sunny")
    assert len(lines[2]) <= 400
    assert lines[3:] == ["Sunny."]


def test_every_event_is_taken():
    shown, out = terminal()
    payload = {
        "text": "",
        "id": "1",
        "name": "n",
        "arguments": {},
        "content": "",
        "is_error": True,
        "attempt": 1,
        "wait": 2.0,
        "error": "RateLimited",
        "turns": 3,
        "max_turns": 3,
    }
    for name in events.EVENTS:
        shown.event(name, payload)
    assert "RateLimited" in out.getvalue()
    assert "Stopped after 3 model calls." in out.getvalue()


def test_notes_are_dimmed_where_there_is_colour():
    shown, out = terminal(color_style(force_color=True))
    shown.note("note \x1b[31m")
    shown.say("text")
    assert out.getvalue() == "\x1b[2mnote \ufffd[31m\x1b[0m\ntext"


def test_an_old_terminals_encoding_does_not_fail():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Terminal(OutputWrapper(out), no_style()).say("née 🧑‍🚀")
    out.flush()
    assert raw.getvalue().startswith(b"n?e ")


def test_messages_are_lines():
    shown, out = terminal()
    calls = (ToolCall("1", "weather", {"city": "Oslo"}),)
    shown.message(Message("system", "secret instructions"))
    shown.message(Message("user", "Weather?\nIn Oslo."))
    shown.message(Message("assistant", tool_calls=calls))
    shown.message(Message("tool", "sunny", tool_call_id="1"))
    assert out.getvalue().splitlines() == [
        "user: Weather? In Oslo.",
        'model calls weather {"city": "Oslo"}',
        "tool: sunny",
    ]
