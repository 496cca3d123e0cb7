"""Whatever was stored, no page of the admin runs it, and no page fails on it."""

from __future__ import annotations

import pytest
from django.db import models
from django.urls import reverse

from nexo_django.models import Chat, Message, Model, ToolCall, Turn
from tests.admin.conftest import person

SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
OURS = [Chat, Turn, Message, ToolCall, Model]

pytestmark = pytest.mark.django_db


def hostile(table, **links):
    """Make a row with the script in every field that takes text."""
    values = dict(links)
    for field in table._meta.concrete_fields:
        if field.name in values or field.choices or field.primary_key:
            continue
        if isinstance(field, models.JSONField):
            values[field.name] = {SCRIPT: [SCRIPT, {"text": SCRIPT}]}
        elif isinstance(field, models.CharField | models.TextField):
            values[field.name] = SCRIPT[: field.max_length] if field.max_length else SCRIPT
    return table._base_manager.bulk_create([table(**values)])[0]


@pytest.fixture
def rows(django_user_model):
    user = django_user_model._base_manager.create(username=SCRIPT)
    model = hostile(Model)
    chat = hostile(Chat, user=user, model=model, lease_token="")
    turn = hostile(Turn, chat=chat, number=1, status="failed")
    made = [model, chat, turn]
    for position, role in enumerate(("system", "user", "assistant", "tool")):
        links = {"chat": chat, "turn": turn, "model": model, "position": position, "role": role}
        made.append(hostile(Message, **links))
    made.append(hostile(ToolCall, message=made[-2], index=0))
    return made


def test_every_page_shows_scripts_as_text(boss, rows):
    urls = ["/admin/", "/admin/nexo_django/"]
    for model in OURS:
        name = model._meta.model_name
        changelist = reverse(f"admin:nexo_django_{name}_changelist")
        urls += [changelist, f"{changelist}?q={SCRIPT}", f"{changelist}?e=1"]
    for row in rows:
        name = row._meta.model_name
        urls += [
            reverse(f"admin:nexo_django_{name}_{page}", args=[row.pk])
            for page in ("change", "history")
        ]
    chat = rows[1]
    urls.append(reverse("admin:nexo_django_chat_delete", args=[chat.pk]))
    urls.append(reverse("admin:nexo_django_chat_change", args=[chat.pk]) + f"?x={SCRIPT}&after=0")
    seen = 0
    for url in urls:
        html = boss.get(url, follow=True).content.decode()
        assert "<script>alert" not in html, url
        assert "<img src=x" not in html, url
        seen += html.count("&lt;script&gt;alert")
    assert seen > 30
    for model in OURS:
        listed = reverse(f"admin:nexo_django_{model._meta.model_name}_changelist")
        assert boss.get(listed).status_code == 200


def test_messages_of_the_deletion_are_escaped(boss, rows):
    chat = rows[1]
    url = reverse("admin:nexo_django_chat_changelist")
    data = {"action": "delete_selected", "_selected_action": [chat.pk]}
    for extra in ({}, {"post": "yes"}):
        html = boss.post(url, {**data, **extra}, follow=True).content.decode()
        assert "<script>alert" not in html
        assert "<img src=x" not in html


def test_odd_values_do_not_break_a_page(boss):
    chat = Chat.objects.create(agent_name="Odd", instance_id="🧑‍🚀 \u202e/?#&%00")
    odd = [{"role": "user", "content": None}, {"role": "user", "content": "\u202eabc"}]
    odd += [{"role": "assistant", "content": "", "reasoning": {"text": "x" * 50_000}}]
    odd += [{"role": "tool", "content": None, "parts": [{"type": "text", "text": "part"}]}]
    for fields in odd:
        Message(chat=chat, **fields).save()
    html = boss.get(reverse("admin:nexo_django_chat_change", args=[chat.pk])).content.decode()
    assert html.count("<article") == 4
    assert len(html) < 80_000
    for row in Message.objects.all():
        url = reverse("admin:nexo_django_message_change", args=[row.pk])
        assert boss.get(url).status_code == 200


def test_every_page_is_read_only(boss, rows):
    for model in OURS:
        name = model._meta.model_name
        assert boss.get(reverse(f"admin:nexo_django_{name}_add")).status_code == 403
    for row in rows:
        name = row._meta.model_name
        change = reverse(f"admin:nexo_django_{name}_change", args=[row.pk])
        assert boss.post(change, {}).status_code == 403
        if not isinstance(row, Chat):
            delete = reverse(f"admin:nexo_django_{name}_delete", args=[row.pk])
            assert boss.post(delete, {"post": "yes"}).status_code == 403
            assert type(row)._base_manager.filter(pk=row.pk).exists()


def test_a_viewer_of_one_model_sees_only_that(rows):
    client = person("view_turn")
    for model in OURS:
        listed = reverse(f"admin:nexo_django_{model._meta.model_name}_changelist")
        assert client.get(listed).status_code == (200 if model is Turn else 403)


def test_lists_are_quick_whatever_their_texts(boss, django_assert_max_num_queries):
    chat = Chat.objects.create(agent_name="Big", instance_id="1")
    for _number in range(60):
        Message(chat=chat, role="user", content="y" * 20_000).save()
    for model in OURS:
        with django_assert_max_num_queries(8):
            url = reverse(f"admin:nexo_django_{model._meta.model_name}_changelist")
            html = boss.get(url).content.decode()
        assert len(html) < 80_000
