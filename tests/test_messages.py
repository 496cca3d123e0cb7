"""Messages, calls and usage as values, and the log of a turn."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    KINDS,
    ROLES,
    STATUSES,
    SYSTEM,
    TOOL,
    USER,
    Message,
    MessageLog,
    ToolCall,
    Usage,
)
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.memory import MemoryStore

names = st.sampled_from(["id", "note", "_id", "x"])
scalars = st.none() | st.booleans() | st.integers() | st.text()
objects = st.dictionaries(names, scalars | st.lists(scalars, max_size=2), max_size=3)
extras = st.dictionaries(st.sampled_from(["ts", "note", "parent"]), scalars, max_size=2)
calls = st.builds(
    ToolCall,
    id=st.text(min_size=1),
    name=st.text(min_size=1),
    arguments=objects,
    raw_arguments=st.none() | st.text(),
    provider_fields=st.none() | objects,
    extra=extras,
)
counts = st.integers(0, 10**9)
usages = st.builds(
    Usage,
    input=counts,
    output=counts,
    cached=counts,
    cost=st.none() | st.decimals(0, 1000, places=6),
    raw=st.none() | objects,
)
messages = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=st.none() | st.text(),
    tool_calls=st.none() | st.lists(calls, max_size=2),
    tool_call_id=st.none() | st.text(),
    is_error=st.booleans(),
    parts=st.none() | st.lists(objects, max_size=2),
    reasoning=st.none() | objects,
    kind=st.sampled_from(KINDS),
    status=st.sampled_from(STATUSES),
    mark=st.none() | st.text(min_size=1),
    model=st.none() | st.text(min_size=1),
    finish_reason=st.none() | st.text(min_size=1),
    usage=st.none() | usages,
    extra=extras,
)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(messages)
def test_a_message_comes_back_equal_through_json(message: Message) -> None:
    line = json.dumps(message.to_dict())
    again = Message.from_dict(json.loads(line))
    assert again == message
    assert again.to_dict() == message.to_dict()
    if message.usage is not None and again.usage is not None:
        assert again.usage.raw == message.usage.raw


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"user","content":"hi"}',
        '{"role":"assistant","content":"","tool_calls":[{"id":"tc1","name":"shell","arguments":{"command":"ls"}}]}',
        '{"role":"assistant","content":"x","tool_calls":[]}',
        '{"role":"tool","content":"out","tool_call_id":"tc1"}',
        '{"role":"user","content":"hi","ts":1,"deep":{"a":[null]}}',
        '{"role":"assistant","tool_calls":[{"id":"1","name":"f","arguments":{},"index":0}]}',
    ],
)
def test_lines_of_brute_come_back_as_they_were(line: str) -> None:
    again = json.dumps(Message.from_dict(json.loads(line)).to_dict(), separators=(",", ":"))
    assert again == line


def test_keys_that_say_nothing_are_left_out() -> None:
    assert Message(USER, "hi").to_dict() == {"role": "user", "content": "hi"}
    assert Message(ASSISTANT).to_dict() == {"role": "assistant"}


def test_calls_given_as_dictionaries_become_values() -> None:
    message = Message(ASSISTANT, tool_calls=[{"id": "a", "name": "f", "arguments": {"x": 1}}])  # type: ignore[arg-type]
    assert message.tool_calls == (ToolCall("a", "f", {"x": 1}),)
    assert message.calls == message.tool_calls
    assert Message(ASSISTANT).calls == ()


@pytest.mark.parametrize(
    "data",
    [
        [],
        None,
        {"content": "no role"},
        {"role": "robot"},
        {"role": ["user"]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "parts": 5},
        {"role": "user", "usage": "x"},
        {"role": "user", "usage": {"cost": "free"}},
        {"role": "user", "usage": {"input": "x"}},
        {"role": "assistant", "tool_calls": "ab"},
        {"role": "assistant", "tool_calls": [1]},
        {"role": "assistant", "tool_calls": {"tc1": {}}},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(data: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"\w+"):
        Message.from_dict(data)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(USER, "x"), True),
        (Message(USER, " \n"), False),
        (Message(ASSISTANT), False),
        (Message(ASSISTANT, tool_calls=[ToolCall("a", "f")]), True),
        (Message(USER, parts=[{"type": "image"}]), True),  # type: ignore[arg-type]
        (Message(USER, parts=({"type": "text", "text": "x"},)), True),
        (Message(USER, parts=({"type": "text", "text": " \n"}, {"type": "text"})), False),
        (Message(USER, parts=({"type": "text", "text": ""}, {"type": "image"})), True),
    ],
)
def test_says_something(message: Message, says: bool) -> None:
    assert message.says_something is says


def test_what_belongs_to_the_store_is_not_part_of_the_value() -> None:
    stored = Message(USER, "x", position=3, token_count=1)
    assert stored == Message(USER, "x")
    assert "position" not in stored.to_dict()
    assert stored.replace(status=INTERRUPTED).position == 3


def test_usage_sums() -> None:
    one = Usage(input=10, output=5, cached=2, cost=Decimal("0.10"))
    two = Usage(input=1, output=1, reasoning=1, cost=Decimal("0.05"))
    total = one + two
    assert (total.input, total.output, total.cached, total.reasoning) == (11, 6, 2, 1)
    assert (total.total, total.cost) == (17, Decimal("0.15"))


def test_an_unknown_price_makes_the_sum_unknown() -> None:
    known, unknown = Usage(input=1, cost=Decimal("0.1")), Usage(input=1)
    assert (known + unknown).cost is None
    assert (Usage() + known).cost == Decimal("0.1")
    assert (Usage() + Usage()).cost is None


def test_a_log_without_a_recorder_is_a_list() -> None:
    log = MessageLog()
    log.user("hi")
    log.assistant("yes", model="m")
    log.tool("a", "out", is_error=True)
    log.extend([Message(USER, "x")])
    log.add([Message(USER, "y")])
    assert [m.role for m in log] == [USER, ASSISTANT, TOOL, USER, USER]
    assert (log[1].model, log[2].tool_call_id, log[2].is_error) == ("m", "a", True)


def test_the_system_message_is_one_and_in_front() -> None:
    log = MessageLog([Message(USER, "x"), Message(SYSTEM, "old"), Message(SYSTEM, "older")])
    log.system("new")
    assert [(m.role, m.content) for m in log] == [(SYSTEM, "new"), (USER, "x")]
    log.system(None)
    assert [m.role for m in log] == [USER]
    log.system("")
    assert [m.role for m in log] == [USER]


def test_what_is_appended_is_committed_first_and_shown_as_stored() -> None:
    chat = MemoryStore().chat("MessageLog", "recorded")
    turn = chat.begin(TurnRequest(Message(USER, "hi")))
    try:
        log = MessageLog(turn.messages)
        log.recorder = turn
        log.append(
            Message(ASSISTANT, "nul \x00", tool_calls=[ToolCall("a", "f"), ToolCall("b", "f")])
        )
        assert log[-1].content == "nul \ufffd"
        second = log.record(Message(TOOL, "2", tool_call_id="b"))
        assert len(log) == 2
        log.add([second])
        assert second.position is not None
        assert [m.content for m in chat.history()][:2] == ["hi", "nul \ufffd"]
    finally:
        turn.close()


def test_what_can_not_be_committed_is_not_shown() -> None:
    turn = MemoryStore().chat("MessageLog", "refused").begin(TurnRequest(Message(USER, "hi")))
    log = MessageLog(turn.messages)
    log.recorder = turn
    turn.close()
    with pytest.raises(Exception, match="session"):
        log.assistant("late")
    assert [m.role for m in log] == [USER]
