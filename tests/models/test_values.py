"""Any message comes back from its row as it was, whatever is in it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.messages import KINDS, ROLES, STATUSES, Message, ToolCall, Usage
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as CallRow
from nexo_django.models import values
from nexo_django.sanitize import clean_message
from tests.models.support import make_chat

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LONG = st.just("long " * 60)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
# Keys that are no field's of a message or a call.
EXTRA = st.dictionaries(
    st.sampled_from(["vendor", "x-1", "née", "cache_control"]), JSON, max_size=2
)
COUNT = st.integers(0, 2**31 - 1)
USAGE = st.builds(
    Usage, COUNT, COUNT, COUNT, COUNT, COUNT, st.none() | st.decimals(0, 99, places=6), OBJECT
)
CALL = st.builds(
    ToolCall, TEXT | LONG, TEXT | LONG, OBJECT, st.none() | TEXT, st.none() | OBJECT, EXTRA
)
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=st.none() | TEXT,
    tool_calls=st.none() | st.just(()) | st.lists(CALL, max_size=2),
    tool_call_id=st.none() | TEXT | LONG,
    is_error=st.booleans(),
    parts=st.none() | st.lists(OBJECT, max_size=2),
    reasoning=st.none() | OBJECT,
    kind=st.sampled_from(KINDS),
    status=st.sampled_from(STATUSES),
    mark=st.none() | TEXT,
    model=st.none() | TEXT | LONG,
    finish_reason=st.none() | TEXT | LONG,
    usage=st.none() | USAGE,
    extra=EXTRA,
)


@given(MESSAGE)
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_comes_back_from_its_columns(message: Message) -> None:
    row = Row(**values.message_columns(message))
    calls = [values.call_value(CallRow(**values.call_columns(c))) for c in message.calls]
    back = values.message_value(row, calls)
    assert back == message
    assert (back.usage and back.usage.raw) == (message.usage and message.usage.raw)


@pytest.mark.django_db
@given(st.lists(MESSAGE.filter(lambda m: m.role != "system"), min_size=1, max_size=4))
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_messages_come_back_from_the_database(messages: list[Message]) -> None:
    chat = make_chat()
    for message in messages:
        row = Row.from_value(message.replace(tool_calls=message.tool_calls and ()), chat=chat)
        row.save()
    stored = [row.value() for row in Row.objects.filter(chat=chat).order_by("position")]
    assert stored == [clean_message(m.replace(tool_calls=m.tool_calls and ())) for m in messages]


@pytest.mark.django_db
@given(CALL)
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_calls_come_back_from_the_database(call: ToolCall) -> None:
    row = Row.objects.create(chat=make_chat(), role="assistant")
    [made] = CallRow.from_values(row, [call])
    made.save()
    wanted = clean_message(Message("assistant", tool_calls=(call,))).calls[0]
    assert CallRow.objects.get(pk=made.pk).value() == wanted


@pytest.mark.django_db
def test_the_order_of_keys_is_kept() -> None:
    arguments: dict[str, Any] = {"zebra": 1, "ab": 2, "a": {"y": 1, "x": 1e23}, "0": 1.0}
    row = Row.objects.create(chat=make_chat(), role="assistant", reasoning=arguments)
    call = CallRow.objects.create(message=row, call_id="a", name="x", arguments=arguments)
    for stored in (
        CallRow.objects.get(pk=call.pk).arguments,
        Row.objects.get(pk=row.pk).reasoning,
    ):
        assert stored == arguments
        assert list(stored) == list(arguments)
        assert list(stored["a"]) == ["y", "x"]


def test_a_cost_is_kept_to_twelve_places() -> None:
    cost = Decimal("0.123456789012345")
    columns = values.message_columns(Message("assistant", "x", usage=Usage(1, 1, cost=cost)))
    assert columns["cost"] == Decimal("0.123456789012")
