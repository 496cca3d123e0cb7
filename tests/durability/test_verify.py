"""The checks of the experiments find what they look for: each kind of damage, done by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.db.models import QuerySet

from nexo_django.models import Chat, Message, Turn
from tests.durability import journal, workers
from tests.durability.verify import findings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NEXO_TEST_JOURNAL", str(tmp_path))
    workers.run("one", "p1", "pair")
    workers.run("one", "p2", "plain")
    return "one"


def test_a_session_that_nothing_happened_to_is_sound(instance: str) -> None:
    assert not findings(instance).any


def _lose_an_answer() -> None:
    Message.objects.filter(content="answer to p1").delete()


def _lose_a_result() -> None:
    Message.objects.filter(content="did one/p1/0.1").delete()


def _repeat_an_effect() -> None:
    journal.write("one", journal.EFFECT, mark="one/p1/0.1")


def _send_nonsense() -> None:
    journal.write("one", journal.REQUEST, name="p1", step=0, problem="an orphan")


def _keep_the_lease() -> None:
    Chat.objects.update(lease_token="held")


def _leave_a_turn_open() -> None:
    Turn.objects.filter(number=1).update(status="running")


def _answer_the_wrong_prompt() -> None:
    # Past the manager that refuses to change what was said.
    rows = Message._base_manager.filter(content="answer to p2")
    QuerySet.update(rows, content="answer to p9")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_lose_an_answer, "losses"),
        (_lose_a_result, "losses"),
        (_repeat_an_effect, "duplicates"),
        (_send_nonsense, "invalid"),
        (_keep_the_lease, "broken"),
        (_leave_a_turn_open, "broken"),
        (_answer_the_wrong_prompt, "broken"),
    ],
)
def test_damage_is_found(instance: str, damage: Callable[[], None], kind: str) -> None:
    damage()
    assert getattr(findings(instance), kind)
