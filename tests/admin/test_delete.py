"""Deleting chats in the admin, whole and with the same care as `session.delete()`."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from nexo_django.models import Chat, Message, ToolCall, Turn
from tests.admin.conftest import make_chat, person
from tests.admin.test_chat import LIST, lease

pytestmark = pytest.mark.django_db


def delete_page(chat: Chat) -> str:
    return reverse("admin:nexo_django_chat_delete", args=[chat.pk])


def test_a_chat_goes_with_everything_of_it():
    chat, other = make_chat(9), make_chat(3, "other")
    client = person("view_chat", "delete_chat")
    asked = client.get(delete_page(chat))
    assert asked.status_code == 200
    assert "Clerk/user-42" in asked.content.decode()
    done = client.post(delete_page(chat), {"post": "yes"}, follow=True)
    assert "deleted successfully" in done.content.decode()
    assert list(Chat.objects.all()) == [other]
    assert Message.objects.count() == 3
    assert set(Turn.objects.values_list("chat", flat=True)) == {other.pk}
    assert set(ToolCall.objects.values_list("message__chat", flat=True)) == {other.pk}
    assert LogEntry.objects.filter(action_flag=3).count() == 1


def test_a_chat_with_a_running_turn_stays(boss):
    chat = make_chat(3)
    lease(chat)
    done = boss.post(delete_page(chat), {"post": "yes"}, follow=True)
    assert "deleted successfully" not in done.content.decode()
    assert done.status_code == 200
    assert [str(m.level_tag) for m in done.context["messages"]] == ["error"]
    assert Message.objects.filter(chat=chat).count() == 3
    assert not LogEntry.objects.exists()


def test_many_are_deleted_but_the_running_ones(boss):
    chats = [make_chat(2, f"user-{n}") for n in range(4)]
    lease(chats[1])
    data = {"action": "delete_selected", "_selected_action": [c.pk for c in chats[:3]]}
    asked = boss.post(LIST, data)
    assert asked.status_code == 200
    assert Chat.objects.count() == 4
    done = boss.post(LIST, {**data, "post": "yes"}, follow=True)
    texts = [str(m) for m in done.context["messages"]]
    assert texts == ["2 chats were deleted.", "Clerk/user-1 was not deleted: a turn of it runs."]
    left = set(Chat.objects.values_list("instance_id", flat=True))
    assert left == {"user-1", "user-3"}
    assert LogEntry.objects.filter(action_flag=3).count() == 2
