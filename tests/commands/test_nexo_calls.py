"""Listing and deciding from a shell."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from nexo_django import Session, ToolCall
from nexo_django.models import ToolCall as Row
from nexo_django.stores.memory import MemoryStore
from tests.approvals.support import asker, asking, publishing, ran

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("nexo_calls", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def session():
    ran.clear()
    question = ToolCall("q", "question", {"text": "Sure\x1b[2J?"})
    made = Session.resume(asker(asking(*publishing("a", "b"), question), "done"), "42")
    made.prompt("Publish both.")
    return made


def test_it_lists_and_decides(session):
    listed = run("list").splitlines()
    assert listed[0] == "Asker 42 a approval publish(text='a')"
    assert "\x1b" not in listed[2]
    assert listed[-1] == "3 calls wait."
    assert run("list", "Asker", "42").splitlines() == listed
    assert run("list", "Other").splitlines() == ["0 calls wait."]
    assert run("approve", "Asker", "42", "a", "--by", "mac") == "publish a was approved.\n"
    run("deny", "Asker", "42", "b", "--reason", "No.", "--by", "mac")
    run("answer", "Asker", "42", "q", "Yes.")
    assert run("list").splitlines() == ["0 calls wait."]
    assert Row.objects.get(call_id="b").decision_reason == "No."
    assert session.continue_turn().status == "done"
    assert ran == ["a"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("approve", "Asker", "42", "z"), "The calls that wait: 'a', 'b', 'q'"),
        (("approve", "Asker", "42", "q"), "is a question to the user"),
        (("answer", "Asker", "42", "a", "x"), "waits for an approval"),
        (("answer", "Asker", "42", "q", " "), "The answer is empty"),
        (("deny", "Asker", "nobody", "a"), "no session of 'Asker' for 'nobody'"),
        (("deny", "Asker", "42", "a", "--by", "x" * 200), "at most 191"),
    ],
)
def test_what_can_not_be_decided_says_why(session, arguments, says):
    with pytest.raises(CommandError, match=says):
        run(*arguments)
    assert len(session.pending()) == 3


def test_a_second_decision_names_the_first(session):
    run("approve", "Asker", "42", "a", "--by", "mac")
    with pytest.raises(CommandError, match="approved by 'mac' at 20"):
        run("deny", "Asker", "42", "a")


def test_without_a_database_a_session_is_named(settings):
    settings.NEXO = {"SESSION_STORE": "memory"}
    Session.resume(asker(asking(*publishing("a"))), "7").prompt("Publish.")
    with pytest.raises(CommandError, match="needs an agent and an instance"):
        run("list")
    assert run("list", "Asker", "7").endswith("1 calls wait.\n")
    assert run("list", "Asker", "8") == "0 calls wait.\n"
    MemoryStore.reset()
