"""Approving and denying in the admin."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from nexo_django import Session, ToolCall
from nexo_django.models import Chat
from nexo_django.models import ToolCall as Row
from tests.admin.conftest import person
from tests.approvals.support import asker, asking, publishing, ran

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session():
    ran.clear()
    question = ToolCall("q", "question", {"text": "Sure?"})
    made = Session.resume(asker(asking(*publishing("a", "b"), question), "done"), "42")
    made.prompt("Publish both.")
    return made


def decide(client: Client, call_id: str, decision: str, **data: str):
    row = Row.objects.get(call_id=call_id)
    url = reverse("admin:nexo_django_toolcall_decide", args=[row.pk])
    return client.post(url, {"decision": decision, **data})


def test_staff_decides_on_each_call(session):
    client = person("view_chat", "decide_toolcall")
    chat = reverse("admin:nexo_django_chat_change", args=[Chat.objects.get().pk])
    page = client.get(chat).content.decode()
    assert page.count('value="approve"') == 2
    assert "awaiting answer" in page
    assert decide(client, "a", "approve").headers["Location"] == chat
    decide(client, "b", "deny", reason="Not that <one>.")
    shown = client.get(chat).content.decode()
    assert "Publish was denied." in shown
    assert 'value="approve"' not in shown
    rows = {row.call_id: row for row in Row.objects.all()}
    assert (rows["a"].decided_by, rows["b"].decided_by) == ("staff-2", "staff-2")
    assert rows["b"].decision_reason == "Not that <one>."
    assert sorted(LogEntry.objects.values_list("change_message", flat=True)) == [
        "approved",
        "denied",
    ]
    assert [call.id for call in session.pending()] == ["q"]
    session.answer("q", "Yes.")
    assert session.continue_turn().status == "done"
    assert ran == ["a"]


def test_who_may_only_look_sees_no_buttons_and_decides_nothing(session):
    client = person("view_chat", "view_toolcall", "change_toolcall")
    row = Row.objects.get(call_id="a")
    for url in (
        reverse("admin:nexo_django_chat_change", args=[Chat.objects.get().pk]),
        reverse("admin:nexo_django_toolcall_change", args=[row.pk]),
    ):
        page = client.get(url).content.decode()
        assert "Calls that wait" in page
        assert 'value="approve"' not in page
    assert decide(client, "a", "approve").status_code == 403
    assert len(session.pending()) == 3


def test_the_page_of_a_call_has_its_buttons(session):
    client = person("view_toolcall", "decide_toolcall")
    row = Row.objects.get(call_id="a")
    url = reverse("admin:nexo_django_toolcall_change", args=[row.pk])
    assert client.get(url).content.decode().count('value="approve"') == 1
    assert decide(client, "a", "approve").headers["Location"] == url


def test_nothing_but_a_post_with_a_token_decides(session, boss):
    row = Row.objects.get(call_id="a")
    url = reverse("admin:nexo_django_toolcall_decide", args=[row.pk])
    assert boss.get(url).status_code == 405
    assert boss.post(url, {"decision": "perhaps"}).status_code == 400
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    assert strict.post(url, {"decision": "approve"}).status_code == 403
    assert Client().post(url, {"decision": "approve"}).status_code == 302
    assert len(session.pending()) == 3


def test_a_call_is_decided_once_and_others_not_at_all(session, boss):
    decide(boss, "a", "approve")
    for call_id, says in (("a", "waits for no approval"), ("q", "waits for no approval")):
        decide(boss, call_id, "deny")
        index = boss.get(reverse("admin:nexo_django_chat_changelist")).content.decode()
        assert says in index
    assert Row.objects.get(call_id="a").status == "pending"
    gone = reverse("admin:nexo_django_toolcall_decide", args=[10**9])
    assert boss.post(gone, {"decision": "deny"}).status_code == 302


def test_chats_that_wait_are_found(session, boss):
    Session.resume(asker("hello", name="Other"), "43").prompt("Hi.")
    url = reverse("admin:nexo_django_chat_changelist")
    page = boss.get(url).content.decode()
    assert "awaiting a decision" in page
    shown = boss.get(f"{url}?state=awaiting").context["cl"].queryset
    assert [chat.instance_id for chat in shown] == ["42"]
