"""Chats as rows, and people who may look at them."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from nexo_django.messages import Message as Value
from nexo_django.messages import ToolCall as CallValue
from nexo_django.models import Chat, Message, ToolCall, Turn


def make_chat(messages: int = 5, instance_id: str = "user-42", agent_name: str = "Clerk") -> Chat:
    """Make a chat with so many messages, a tool call in each turn of four."""
    chat = Chat.objects.create(agent_name=agent_name, instance_id=instance_id)
    turn = Turn.objects.create(chat=chat, number=1, status="done")
    call = None
    for number in range(messages):
        kind = number % 4
        calls = (CallValue(f"call-{number}", "weather", {"city": "Oslo"}),) if kind == 1 else ()
        value = Value(
            ("user", "assistant", "tool", "assistant")[kind],
            f"text number {number}",
            tool_calls=calls or None,
        )
        row = Message.from_value(value, chat=chat, turn=turn, answers=call if kind == 2 else None)
        row.save()
        if calls:
            # The result takes the position that its call reserved.
            (call,) = ToolCall.objects.bulk_create(ToolCall.from_values(row, calls))
    chat.refresh_from_db()
    return chat


def person(*permissions: str) -> Client:
    """Give a client of a staff member with just these permissions."""
    user = User.objects.create_user(f"staff-{len(permissions)}", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=permissions, content_type__app_label="nexo_django")
    )
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def chat(db):
    return make_chat()


@pytest.fixture
def boss(db):
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client
