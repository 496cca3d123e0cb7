"""What the database itself refuses, and how everything in it is named."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, models, transaction

from nexo_django.models import Chat, Compaction, Message, Model, SandboxFile, ToolCall, Turn
from nexo_django.models.turn import TurnStatus
from nexo_django.stores.base import TURN_STATUSES
from tests.models.support import make_chat

MODELS = list(apps.get_app_config("nexo_django").get_models())
pytestmark = pytest.mark.django_db


def refuse(make: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        make()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_names_fit_every_database(model: Any) -> None:
    for named in [*model._meta.constraints, *model._meta.indexes]:
        assert len(named.name) <= 30
        assert named.name.startswith("nexo_django_")


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_relation_has_a_name(model: Any) -> None:
    for field in model._meta.get_fields():
        if isinstance(field, models.ForeignKey):
            assert field.remote_field.related_name, field


def test_statuses_of_turns_are_the_stores() -> None:
    assert set(TurnStatus.values) == set(TURN_STATUSES)


def test_a_pair_has_one_chat() -> None:
    chat = make_chat()
    refuse(lambda: make_chat(agent_name=chat.agent_name, instance_id=chat.instance_id))


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "A"), ("e", "é"), ("x", "x "), ("ss", "ß"), ("🦊", "🐻"), ("a", "a\u200d")],
)
def test_pairs_that_look_alike_are_apart(one: str, other: str) -> None:
    first, second = make_chat(instance_id=one), make_chat(instance_id=other)
    assert Chat.objects.get(instance_id=one) == first
    assert Chat.objects.get(instance_id=other) == second
    assert make_chat(agent_name=one).pk != make_chat(agent_name=other).pk
    for key in (one, other):
        Turn.objects.create(chat=first, number=Turn.objects.count() + 1, key=key)
        SandboxFile.objects.create(chat=first, path=key)
        Model.objects.create(provider="x", model_id=key)
    assert Turn.objects.get(chat=first, key=other).key == other


@pytest.mark.parametrize("name", ["agent_name", "instance_id"])
def test_a_chat_has_both_names(name: str) -> None:
    refuse(lambda: make_chat(**{name: ""}))
    refuse(lambda: make_chat(**{name: None}))


def test_longest_names_fit() -> None:
    chat = make_chat(agent_name="é" * 100, instance_id="🦊" * 191)
    assert Chat.objects.get(pk=chat.pk).instance_id == "🦊" * 191


@pytest.mark.parametrize(
    "fields",
    [{"role": "robot"}, {"role": "user", "kind": "odd"}, {"role": "user", "status": "odd"}],
)
def test_messages_are_of_known_kinds(fields: dict[str, Any]) -> None:
    chat = make_chat()
    row = Message(chat=chat, position=1, content="x", **fields)
    refuse(lambda: Message._base_manager.bulk_create([row]))


@pytest.mark.parametrize(("role", "position"), [("system", 1), ("user", 0)])
def test_position_0_is_the_system_messages(role: str, position: int) -> None:
    row = Message(chat=make_chat(), role=role, position=position, content="x")
    refuse(lambda: Message._base_manager.bulk_create([row]))


def test_a_position_is_taken_once() -> None:
    chat = make_chat()
    rows = [Message(chat=chat, role="user", position=1, content=c) for c in "ab"]
    refuse(lambda: Message._base_manager.bulk_create(rows))


def test_a_call_has_one_id_and_one_result() -> None:
    chat = make_chat()
    asking = Message.objects.create(chat=chat, role="assistant")
    call = ToolCall.objects.create(message=asking, call_id="a", name="x")
    refuse(lambda: ToolCall.objects.create(message=asking, call_id="a", name="x", index=1))
    refuse(lambda: ToolCall.objects.create(message=asking, call_id="b", name="x", status="odd"))
    Message.objects.create(chat=chat, role="tool", content="1", answers=call)
    refuse(lambda: Message.objects.create(chat=chat, role="tool", content="2", answers=call))
    again = Message.objects.create(chat=chat, role="assistant")
    ToolCall.objects.create(message=again, call_id="a", name="x")


def test_turns_and_compactions_have_numbers_of_their_own() -> None:
    chat = make_chat()
    Turn.objects.create(chat=chat, number=1, key="k")
    Turn.objects.create(chat=chat, number=2)
    Turn.objects.create(chat=chat, number=3)
    refuse(lambda: Turn.objects.create(chat=chat, number=1))
    refuse(lambda: Turn.objects.create(chat=chat, number=4, key="k"))
    refuse(lambda: Turn.objects.create(chat=chat, number=5, status="odd"))
    Compaction.objects.create(chat=chat, version=1)
    refuse(lambda: Compaction.objects.create(chat=chat, version=1))
