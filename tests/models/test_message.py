"""`save()` is the hook: cleaned, placed, counted, in the totals, told of, and never changed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from nexo_django import signals
from nexo_django.exceptions import NotSupported
from nexo_django.messages import Message as Value
from nexo_django.messages import ToolCall as CallValue
from nexo_django.messages import Usage
from nexo_django.models import Chat, Message, ToolCall, Turn
from tests.models.support import make_chat, side_by_side

pytestmark = pytest.mark.django_db


def test_a_bare_message_is_placed_counted_and_in_the_totals() -> None:
    chat = make_chat()
    first = Message(chat=chat, role="user", content="hello")
    first.save()
    second = Message(chat=chat, role="assistant", content="hi there")
    second.save()
    assert (first.position, second.position) == (1, 2)
    assert first.token_count > 0
    assert first.token_ruler
    chat.refresh_from_db()
    assert chat.next_position == 3
    assert chat.message_count == 2
    assert chat.token_count == first.token_count + second.token_count
    assert chat.last_message_at is not None


def test_create_goes_through_save() -> None:
    chat = make_chat()
    rows = [Message.objects.create(chat=chat, role="user", content=str(n)) for n in range(3)]
    assert [row.position for row in rows] == [1, 2, 3]


def test_a_message_with_calls_keeps_places_for_their_results() -> None:
    chat = make_chat()
    calls = (CallValue("a", "x"), CallValue("b", "y"))
    asking = Message.from_value(Value("assistant", tool_calls=calls), chat=chat)
    asking.save()
    after = Message.objects.create(chat=chat, role="user", content="next")
    assert (asking.position, after.position) == (1, 4)


def test_what_no_database_holds_is_replaced() -> None:
    chat = make_chat()
    row = Message(chat=chat, role="assistant", content="nul \x00, half \ud83d")
    row.reasoning = {"text": "\x00", "n": float("nan")}
    row.save()
    stored = Message.objects.get(pk=row.pk)
    assert stored.content == "nul \ufffd, half \ufffd"
    assert stored.reasoning == {"text": "\ufffd", "n": "NaN"}
    call = ToolCall.objects.create(
        message=row, call_id="c\x00", name="n", arguments={"a": "\ud800"}
    )
    assert ToolCall.objects.get(pk=call.pk).arguments == {"a": "\ufffd"}


@pytest.mark.parametrize("changes", [{}, {"update_fields": ["content"]}])
def test_a_stored_message_is_never_changed(changes: dict[str, Any]) -> None:
    row = Message.objects.create(chat=make_chat(), role="user", content="said")
    row.content = "never said"
    with pytest.raises(NotSupported) as caught:
        row.save(**changes)
    assert "said" not in str(caught.value)
    assert Message.objects.get(pk=row.pk).content == "said"


def test_a_queryset_changes_no_content_either() -> None:
    row = Message.objects.create(chat=make_chat(), role="user", content="said")
    with pytest.raises(NotSupported, match="content"):
        Message.objects.filter(pk=row.pk).update(content="never said")
    assert Message.objects.filter(pk=row.pk).update(token_count=5) == 1


def test_no_message_goes_around_the_hook() -> None:
    chat = make_chat()
    row = Message.objects.create(chat=chat, role="user", content="said")
    row.content = "never said"
    with pytest.raises(NotSupported, match=r"save\(\)"):
        Message.objects.bulk_create([Message(chat=chat, role="user", content="more")])
    with pytest.raises(NotSupported, match=r"save\(\)"):
        chat.messages.bulk_create([Message(role="user", content="more")])
    with pytest.raises(NotSupported, match="content"):
        Message.objects.bulk_update([row], ["content"])
    row.token_count = 5
    assert Message.objects.bulk_update([row], ["token_count"]) == 1
    assert list(Message.objects.values_list("content", "token_count")) == [("said", 5)]


def test_a_plain_manager_is_left_for_who_knows_what_they_do() -> None:
    assert type(Message._base_manager.all()) is QuerySet
    rows = [Message(chat=make_chat(), role="user", position=1, content="made by hand")]
    assert Message._base_manager.bulk_create(rows) == rows


def test_a_stored_message_is_not_made_the_system_message() -> None:
    chat = make_chat()
    row = Message.objects.create(chat=chat, role="user", content="said")
    before = Chat.objects.filter(pk=chat.pk).values().get()
    row.role, row.position, row.content = "system", 0, "obey"
    with pytest.raises(NotSupported):
        row.save()
    assert Message.objects.values_list("role", "content", "position").get() == ("user", "said", 1)
    assert Chat.objects.filter(pk=chat.pk).values().get() == before


def test_a_system_message_stays_its_chats() -> None:
    row = Message.objects.create(chat=make_chat(), role="system", content="be kind")
    row.chat = other = make_chat()
    with pytest.raises(NotSupported):
        row.save()
    assert not other.messages.exists()


def test_a_new_message_is_not_written_over_a_stored_one() -> None:
    chat = make_chat()
    stored = Message.objects.create(chat=chat, role="user", content="said")
    with pytest.raises(IntegrityError), transaction.atomic():
        Message(pk=stored.pk, chat=chat, role="user", content="never said").save()
    assert Message.objects.get().content == "said"


def test_a_count_may_be_taken_again() -> None:
    row = Message.objects.create(chat=make_chat(), role="user", content="said")
    row.token_count, row.token_ruler = 17, "other:1"
    row.save(update_fields=["token_count", "token_ruler"])
    assert Message.objects.get(pk=row.pk).token_ruler == "other:1"


def test_the_system_message_is_one_and_may_change() -> None:
    chat = make_chat()
    row = Message.objects.create(chat=chat, role="system", content="be kind")
    assert row.position == 0
    row.content = "be brief, and kind \x00"
    row.save()
    chat.refresh_from_db()
    assert (chat.message_count, chat.token_count) == (1, row.token_count)
    assert Message.objects.get(chat=chat).content == "be brief, and kind \ufffd"
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.create(chat=chat, role="system", content="another")


def test_usage_moves_the_totals() -> None:
    chat = make_chat()
    for cost in ("0.25", "0.000001"):
        used = Usage(10, 5, 3, 2, 1, Decimal(cost), {"prompt_tokens": 10})
        Message.from_value(Value("assistant", "x", usage=used), chat=chat).save()
    chat.refresh_from_db()
    assert chat.usage == Usage(20, 10, 6, 4, 2, Decimal("0.250001"))


def test_a_cost_that_was_unknown_once_stays_unknown() -> None:
    chat = make_chat()
    for used in (Usage(1, 1, cost=Decimal(1)), Usage(1, 1), Usage(1, 1, cost=Decimal(1))):
        Message.from_value(Value("assistant", "x", usage=used), chat=chat).save()
    chat.refresh_from_db()
    assert chat.cost is None
    assert chat.usage.cost is None
    assert Message.objects.filter(chat=chat, cost=None).count() == 1


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "100000000"])
def test_what_is_no_price_is_unknown(cost: str) -> None:
    used = Usage(2**40, -1, cost=Decimal(cost))
    row = Message.from_value(Value("assistant", "x", usage=used), chat=make_chat())
    row.save()
    stored = Message.objects.get(pk=row.pk)
    assert stored.cost is None
    assert (stored.input_tokens, stored.output_tokens) == (2**31 - 1, 0)


def test_a_saved_message_is_told_of_after_the_commit(
    django_capture_on_commit_callbacks: Any,
) -> None:
    told: list[Any] = []

    def receive(message: Message, **kwargs: Any) -> None:
        told.append(message)
        raise RuntimeError("a receiver that fails")

    signals.message_saved.connect(receive, sender=Message)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            row = Message.objects.create(chat=make_chat(), role="user", content="x")
            assert told == []
    finally:
        signals.message_saved.disconnect(receive, sender=Message)
    assert told == [row]


def test_nothing_waits_for_the_commit_without_receivers(
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        Message.objects.create(chat=make_chat(), role="user", content="x")
    assert callbacks == []


def test_a_rollback_takes_the_place_back() -> None:
    chat = make_chat()

    def fail() -> None:
        with transaction.atomic():
            Message.objects.create(chat=chat, role="user", content="x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    row = Message.objects.create(chat=chat, role="user", content="y")
    assert row.position == 1


@pytest.mark.django_db(transaction=True)
def test_messages_saved_at_once_have_places_of_their_own() -> None:
    chat = make_chat()

    def save() -> None:
        for _ in range(10):
            Message.objects.create(chat_id=chat.pk, role="user", content="x")

    assert side_by_side(save, save, save) == [None] * 3
    places = Message.objects.filter(chat=chat).order_by("position")
    assert list(places.values_list("position", flat=True)) == list(range(1, 31))
    chat.refresh_from_db()
    assert (chat.message_count, chat.next_position) == (30, 31)


def test_deleting_a_chat_takes_everything_with_it() -> None:
    chat = make_chat()
    turn = Turn.objects.create(chat=chat, number=1)
    asking = Message.from_value(
        Value("assistant", tool_calls=(CallValue("a", "x"),)), chat=chat, turn=turn
    )
    asking.save()
    [call] = ToolCall.from_values(asking, asking.new_calls)
    call.save()
    Message.from_value(Value("tool", "done", tool_call_id="a"), chat=chat, answers=call).save()
    other = Message.objects.create(chat=make_chat(), role="user", content="stays")
    chat.delete()
    assert not Chat.objects.filter(pk=chat.pk).exists()
    assert list(Message.objects.all()) == [other]
    assert ToolCall.objects.count() == Turn.objects.count() == 0


def test_a_stored_message_gives_its_value() -> None:
    chat = make_chat()
    value = Value("assistant", "x", tool_calls=(CallValue("a" * 300, "x", {"b": 1}),))
    asking = Message.from_value(value, chat=chat)
    asking.save()
    [call] = ToolCall.from_values(asking, asking.new_calls)
    call.save()
    answer = Value("tool", "done", tool_call_id="a" * 300)
    Message.from_value(answer, chat=chat, answers=call).save()
    assert [row.value() for row in Message.objects.filter(chat=chat)] == [value, answer]
