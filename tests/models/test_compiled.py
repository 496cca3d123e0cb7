from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from nexo_django.models import Chat
from nexo_django.models.clock import DatabaseTime
from nexo_django.models.compiled import Add, select, update
from nexo_django.models.querysets import ChatQuerySet
from tests.models.support import make_chat

pytestmark = pytest.mark.django_db


def named(alias: str, among: str, **slots: Any) -> Any:
    chats = Chat.objects.using(alias).filter(instance_id=slots["name"])
    if among == "tuples":
        return chats.values_list("pk", "metadata", "cost")
    return chats.select_related("model", "current_compaction").annotate(now=DatabaseTime())


def test_an_update_changes_what_it_names_and_counts_it() -> None:
    chat, other = make_chat(), make_chat()
    now = timezone.now()
    for amount in (3, 4):
        changes = {"token_count": Add(amount), "cost": Add(Decimal("0.5")), "last_message_at": now}
        assert update(Chat, "default", {"pk": chat.pk}, changes) == 1
    assert update(Chat, "default", {"pk": chat.pk, "token_count": 8}, {"token_count": 1}) == 0
    chat.refresh_from_db()
    other.refresh_from_db()
    assert (chat.token_count, chat.cost, chat.last_message_at) == (7, Decimal(1), now)
    assert (other.token_count, other.cost, other.last_message_at) == (0, 0, None)


def test_null_is_a_value_too() -> None:
    chat = make_chat()
    address = {"pk": chat.pk, "current_compaction": None}
    assert update(Chat, "default", address, {"cost": None, "open_turn": 2}) == 1
    assert update(Chat, "default", {"pk": chat.pk}, {"cost": Add(Decimal(1)), "open_turn": None})
    chat.refresh_from_db()
    assert (chat.cost, chat.open_turn) == (None, None)


def test_an_update_is_among_the_rows_of_a_queryset() -> None:
    chat = make_chat()
    held = {"lease_token": "a", "lease_expires_at": DatabaseTime(60)}
    where = {"pk": chat.pk}
    assert update(Chat, "default", where, held, ChatQuerySet.free) == 1
    assert update(Chat, "default", where, held, ChatQuerySet.free) == 0
    assert update(Chat, "default", where, {"lease_expires_at": DatabaseTime(-60)}) == 1
    assert update(Chat, "default", where, held, ChatQuerySet.free) == 1


def test_a_refused_update_raises_and_breaks_its_transaction() -> None:
    chat = make_chat()
    with pytest.raises(DatabaseError):
        update(Chat, "default", {"pk": chat.pk}, {"agent_name": ""})
    assert connection.needs_rollback
    connection.set_rollback(False)


def test_a_select_runs_again_with_other_values() -> None:
    chats = [make_chat(metadata={"n": n}) for n in range(3)]
    for chat in chats:
        with CaptureQueriesContext(connection) as captured:
            (found,) = select(named, "default", "instances", name=chat.instance_id)
        assert len(captured) == 1
        assert (found, found.metadata, found.model) == (chat, chat.metadata, None)
        assert found.now is not None
        made = select(named, "default", "tuples", name=chat.instance_id)
        assert made == [(chat.pk, chat.metadata, Decimal(0))]
    assert select(named, "default", "tuples", name="nobody") == []


@pytest.mark.django_db(transaction=True)
def test_each_thread_uses_its_own_connection() -> None:
    chat = make_chat()
    select(named, "default", "instances", name=chat.instance_id)
    seen: list[Any] = []

    def look() -> None:
        with CaptureQueriesContext(connections["default"]) as captured:
            seen.append(select(named, "default", "instances", name=chat.instance_id))
        seen.append(len(captured))
        connections["default"].close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [[chat], 1]
