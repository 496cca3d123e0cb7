"""The pages of chats: found, read as conversations, never changed, deleted whole."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import chain

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from nexo_django.admin.transcript import PER_PAGE
from nexo_django.models import Chat, Compaction, Message, Turn
from nexo_django.models.clock import DatabaseTime
from tests.admin.conftest import make_chat, person

LIST = "/admin/nexo_django/chat/"

pytestmark = pytest.mark.django_db


def page_of(chat: Chat) -> str:
    return reverse("admin:nexo_django_chat_change", args=[chat.pk])


def lease(chat: Chat, seconds: float = 600) -> None:
    Chat.objects.filter(pk=chat.pk).update(
        lease_token="f" * 32, lease_expires_at=DatabaseTime(seconds)
    )


def test_the_conversation_is_on_the_chats_page(boss, chat):
    html = boss.get(page_of(chat)).content.decode()
    texts = re.findall(r"text number \d", re.sub(r"<summary.*?</summary>", "", html, flags=re.S))
    assert texts == [f"text number {n}" for n in range(5)]
    assert html.count("<article") == 5
    assert "weather" in html
    assert "call-1" in html


def test_a_tools_call_and_result_are_folded(boss, chat):
    html = boss.get(page_of(chat)).content.decode()
    (result,) = re.findall(r'<article class="nexo-entry nexo-tool.*?</article>', html, flags=re.S)
    assert "<details>" in result
    assert "<code>weather</code>" in result


def test_long_conversations_are_paged(boss):
    chat = make_chat(PER_PAGE * 2 + 20)
    last = boss.get(page_of(chat))
    assert last.context["transcript"].entries[-1].row.position == chat.next_position - 1
    assert not last.context["later"]
    seen = [[e.row.pk for e in last.context["transcript"].entries]]
    response = last
    while response.context["earlier"]:
        response = boss.get(page_of(chat) + response.context["earlier"].partition("#")[0])
        seen.insert(0, [e.row.pk for e in response.context["transcript"].entries])
    rows = list(Message.objects.filter(chat=chat).order_by("position").values_list("pk", flat=True))
    assert list(chain(*seen)) == rows
    again = [seen[0]]
    while response.context["later"]:
        response = boss.get(page_of(chat) + response.context["later"].partition("#")[0])
        again.append([e.row.pk for e in response.context["transcript"].entries])
    assert list(chain(*again)) == rows


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30, "²", ""])
def test_a_page_that_is_no_number_is_the_last_one(boss, chat, value):
    response = boss.get(page_of(chat), {"before": value})
    assert len(response.context["transcript"].entries) == 5


def test_queries_do_not_grow_with_the_chat(boss):
    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(url).status_code == 200
        return len(captured)

    small, large = make_chat(5, "small"), make_chat(500, "large")
    boss.get(page_of(small))
    counts = [queries(page_of(small)), queries(page_of(large))]
    assert counts[0] == counts[1], counts
    assert counts[1] <= 14, counts
    assert queries(LIST) <= 8
    before = queries(LIST)
    for number in range(20):
        make_chat(1, f"more-{number}")
    assert queries(LIST) == before
    delete = reverse("admin:nexo_django_chat_delete", args=[large.pk])
    assert queries(delete) <= 8


def test_a_large_text_is_capped(boss):
    chat = make_chat(0)
    Message(chat=chat, role="user", content="x" * 300_000).save()
    html = boss.get(page_of(chat)).content.decode()
    assert len(html) < 60_000
    assert "290,000 more characters are stored" in html
    row = Message.objects.get()
    detail = boss.get(reverse("admin:nexo_django_message_change", args=[row.pk])).content.decode()
    assert "100,000 more characters are stored" in detail


def listed(client, **query) -> set[str]:
    response = client.get(LIST, query)
    assert response.status_code == 200, query
    return {chat.instance_id for chat in response.context["cl"].result_list}


def test_chats_are_found(boss):
    mac = User.objects.create_user("mac")
    running, unfinished, old = (make_chat(1, name) for name in ("run-1", "open-1", "old-1"))
    make_chat(1, "other-1", "Other")
    lease(running)
    Chat.objects.filter(pk=unfinished.pk).update(open_turn=1, user=mac)
    Chat.objects.filter(pk=old.pk).update(last_message_at=timezone.now() - timedelta(days=90))
    everything = {"run-1", "open-1", "old-1", "other-1"}
    assert listed(boss) == everything
    assert listed(boss, q="open") == {"open-1"}
    assert listed(boss, q="Other") == {"other-1"}
    assert listed(boss, q="mac") == {"open-1"}
    assert listed(boss, state="running") == {"run-1"}
    assert listed(boss, state="open") == {"open-1"}
    assert listed(boss, state="settled") == {"old-1", "other-1"}
    since = (timezone.now() - timedelta(days=7)).isoformat()
    assert listed(boss, last_message_at__gte=since) == everything - {"old-1"}
    make_chat(1, "assistant-1", "Assistant")
    assert listed(boss, agent="Assistant") == {"assistant-1"}
    assert listed(boss, agent="\x00") == listed(boss, state="\x00") == listed(boss)


def test_an_expired_lease_is_no_running_turn(boss, chat):
    lease(chat, -5)
    assert listed(boss, state="running") == set()


def test_nothing_can_be_added_or_changed(boss, chat):
    assert boss.get(f"{LIST}add/").status_code == 403
    assert boss.post(f"{LIST}add/", {"agent_name": "a", "instance_id": "b"}).status_code == 403
    assert boss.post(page_of(chat), {"agent_name": "Evil"}).status_code == 403
    chat.refresh_from_db()
    assert chat.agent_name == "Clerk"


def test_without_permission_nothing_is_seen(chat):
    nobody, viewer = person(), person("view_chat")
    for url in (LIST, page_of(chat)):
        assert nobody.get(url).status_code == 403
        assert viewer.get(url).status_code == 200
    delete = reverse("admin:nexo_django_chat_delete", args=[chat.pk])
    assert viewer.get(delete).status_code == 403
    assert viewer.post(delete, {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": chat.pk, "post": "yes"}
    viewer.post(LIST, chosen)
    assert Chat.objects.filter(pk=chat.pk).exists()


def test_a_turn_that_did_not_end_well_says_so(boss, chat):
    Turn.objects.update(status="failed", error="RateLimited")
    html = boss.get(page_of(chat)).content.decode()
    assert html.count("Turn 1: failed") == 1
    assert html.index("Turn 1: failed") > html.index("text number 4")
    assert "(RateLimited)" in html


def test_the_page_shows_where_the_models_view_begins(boss):
    chat = make_chat(PER_PAGE + 30)
    (kept,) = chat.messages.order_by("position")[60:61]
    compaction = Compaction.objects.create(
        chat=chat, version=1, first_kept_position=kept.position, status="done"
    )
    Chat.objects.filter(pk=chat.pk).update(current_compaction=compaction)
    marks = [e.row.pk for e in entries(boss, chat) if e.begins_view]
    assert marks == [kept.pk]
    first = chat.messages.order_by("position").first()
    assert not [e for e in entries(boss, chat, after=first.position - 1) if e.begins_view]


def entries(boss, chat, **query):
    return boss.get(page_of(chat), query).context["transcript"].entries


def test_long_names_are_cut_in_lists_only(boss):
    name = "n" * 191
    chat = make_chat(1, name)
    for url in (LIST, reverse("admin:nexo_django_message_changelist")):
        html = boss.get(url).content.decode()
        assert "n" * 20 in html
        assert not re.search(r"n{41}[^<>\"]*</", html)
    assert name in boss.get(page_of(chat)).content.decode()
