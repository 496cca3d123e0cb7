"""The questions that are asked of chats and messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from nexo_django.models import Chat, Compaction, Message
from nexo_django.models.clock import DatabaseTime
from tests.models.support import make_chat

pytestmark = pytest.mark.django_db


def holding(seconds: float, **fields: Any) -> Chat:
    return make_chat(lease_token="t", lease_expires_at=DatabaseTime(seconds), **fields)


def test_leased_and_free_by_the_databases_clock() -> None:
    running, dead, free, odd = holding(60), holding(-1), make_chat(), make_chat(lease_token="t")
    assert set(Chat.objects.leased()) == {running}
    assert set(Chat.objects.free()) == {dead, free, odd}


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_clock_is_read_as_it_is_written(settings: Any, use_tz: bool) -> None:
    settings.USE_TZ = use_tz
    chat = holding(30)
    read = Chat.objects.annotate(now=DatabaseTime(), later=DatabaseTime(30)).get(pk=chat.pk)
    assert timedelta(seconds=29) <= read.later - read.now <= timedelta(seconds=31)
    assert timedelta(0) < read.lease_expires_at - read.now <= timedelta(seconds=30)
    assert Chat.objects.leased().filter(pk=chat.pk).exists()


def test_chats_of_an_agent() -> None:
    chat = make_chat(agent_name="One")
    make_chat(agent_name="one")
    assert list(Chat.objects.for_agent("One")) == [chat]


def test_stale_chats_are_old_and_at_rest() -> None:
    now = timezone.now()
    old = make_chat(last_message_at=now - timedelta(days=9))
    make_chat(last_message_at=now)
    holding(60, last_message_at=now - timedelta(days=9))
    empty = make_chat()
    Chat.objects.filter(pk=empty.pk).update(created=now - timedelta(days=9))
    make_chat()
    assert set(Chat.objects.stale(now - timedelta(days=7))) == {old, empty}


def test_the_view_begins_at_the_boundary() -> None:
    chat = make_chat()
    Message.objects.create(chat=chat, role="system", content="be kind")
    for n in range(1, 5):
        Message.objects.create(chat=chat, role="user", content=str(n))
    old = Message.objects.create(chat=chat, role="user", content="old", kind="summary")
    new = Message.objects.create(chat=chat, role="user", content="new", kind="summary")
    assert Message.objects.view(chat).count() == 7
    made = [
        Compaction.objects.create(chat=chat, version=n, first_kept_position=3, summary=summary)
        for n, summary in enumerate((old, new))
    ]
    for summary, compaction in zip((old, new), made, strict=True):
        chat.current_compaction = compaction
        texts = {row.content for row in Message.objects.view(chat)}
        assert texts == {"be kind", "3", "4", summary.content}
    chat.current_compaction = Compaction.objects.create(chat=chat, version=2, first_kept_position=4)
    assert [row.content for row in Message.objects.view(chat)] == ["be kind", "4"]
