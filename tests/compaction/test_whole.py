"""A chat that was compacted many times is whole: in its history, and in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from nexo_django import Message, Session, tool
from nexo_django.messages import ASSISTANT, NORMAL, SUMMARY, SYSTEM, TOOL, USER
from nexo_django.models import Chat, Compaction
from nexo_django.pipeline import Env
from tests.compaction.conversations import Summariser
from tests.support import asking, call, make_agent

pytestmark = pytest.mark.django_db(transaction=True)
PROMPTS = 40


@tool
def look(number: int) -> str:
    """Look something up."""
    return f"found {number}: " + "a heron or two " * 20


def answers(env: Env) -> None:
    """Look something up, then answer."""
    last = env.messages[-1]
    number = sum(m.role == USER for m in env.metadata["stored"].history())
    if last.role == USER:
        env.messages.append(asking(call("look", number=number), text=f"looking {number}"))
    else:
        env.messages.append(Message(ASSISTANT, f"answer {number}"))


@pytest.fixture
def session(settings: Any) -> Session:
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}

    def model(env: Env) -> None:
        env.metadata["stored"] = made.stored
        answers(env)

    agent = make_agent(
        model, name="Whole", tools=[look], context_window=1600, instructions="Be kind."
    )
    agent.completion = lambda self: Summariser()
    made = Session.resume(agent, "long")
    for number in range(PROMPTS):
        made.prompt(f"question {number}: " + "tell me more " * 15)
    return made


def shown(chat: Chat) -> list[Any]:
    """Read the admin's pages from the last to the first."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    page = reverse("admin:nexo_django_chat_change", args=[chat.pk])
    response = client.get(page)
    entries = list(response.context["transcript"].entries)
    while earlier := response.context["earlier"]:
        response = client.get(page + earlier.partition("#")[0])
        entries = [*response.context["transcript"].entries, *entries]
    return entries


def test_everything_is_in_the_history_and_in_the_admin(session: Session) -> None:
    chat = Chat.objects.get(agent_name="Whole", instance_id="long")
    assert Compaction.objects.filter(chat=chat, status="done").count() >= 3
    said = [m for m in session.history() if m.role != SYSTEM and m.kind == NORMAL]
    assert [m.role for m in said] == [USER, ASSISTANT, TOOL, ASSISTANT] * PROMPTS
    prompts = [m.content for m in said if m.role == USER]
    assert [(text or "").partition(":")[0] for text in prompts] == [
        f"question {number}" for number in range(PROMPTS)
    ]
    # What a placeholder stands for in the view is told as it was.
    assert all("a heron or two a heron" in (m.content or "") for m in said if m.role == TOOL)
    view = session.messages
    assert len(view) < len(said) // 2
    assert sum(m.kind == SUMMARY for m in view) == 1
    entries = [e for e in shown(chat) if e.row.role != SYSTEM and e.row.kind == NORMAL]
    assert [(e.row.position, e.row.role) for e in entries] == [(m.position, m.role) for m in said]
    assert [e.text.shown for e in entries] == [m.content for m in said]
    assert [len(e.calls) for e in entries] == [len(m.calls) for m in said]
