"""Stored chats are checked and repaired; running ones are never touched."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nexo_django import Agent, Session, transcript
from nexo_django.messages import Message as Value
from nexo_django.messages import ToolCall as CallValue
from nexo_django.models import Chat, Compaction, Message, ToolCall, Turn
from nexo_django.models.clock import DatabaseTime
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.choice import store_for

pytestmark = pytest.mark.django_db

CALLS = (CallValue("a", "weather", {"city": "Oslo"}), CallValue("b", "weather", {}))


def talk(instance_id: str, *, answered: bool = True, done: bool = True) -> Chat:
    """Run a turn with two calls through the store; leave it where it is told to."""
    stored = store_for("database").chat("Clerk", instance_id)
    turn = stored.begin(TurnRequest(Value("user", "Weather?")))
    turn.append(Value("assistant", tool_calls=CALLS))
    for call in CALLS if answered else CALLS[:1]:
        turn.start_call(call)
        turn.append(Value("tool", "sunny", tool_call_id=call.id))
    if done:
        turn.append(Value("assistant", "Sunny."))
    turn.close()
    return Chat.objects.get(instance_id=instance_id)


def broken(instance_id: str) -> Chat:
    """Make a chat with a call that has no result, in a turn that nobody will finish."""
    chat = talk(instance_id, answered=False, done=False)
    Chat.objects.filter(pk=chat.pk).update(open_turn=None)
    chat.refresh_from_db()
    return chat


def run(*options: str) -> tuple[str, str]:
    """Give what the command printed, and its error."""
    out, failure = StringIO(), ""
    try:
        call_command("nexo_check_history", *options, stdout=out, stderr=StringIO())
    except CommandError as error:
        failure = str(error)
    return out.getvalue(), failure


def history(chat: Chat) -> list[Value]:
    return list(store_for("database").chat(chat.agent_name, chat.instance_id).history())


def test_without_chats_there_is_nothing_wrong():
    assert run() == (
        "0 chats: 0 valid, 0 repaired, 0 with problems, 0 skipped (a turn runs).\n",
        "",
    )


def test_what_turns_store_is_valid():
    talk("done")
    talk("no answer yet", done=False)
    talk("killed", answered=False, done=False)
    out, failure = run()
    assert not failure
    assert "3 chats: 3 valid" in out


def test_a_missing_result_is_found_and_repaired():
    chat = broken("user-42")
    out, failure = run()
    assert out.startswith("Clerk/user-42: in the turn from position 1: ")
    assert "1 chats have problems" in failure
    out, failure = run("--repair")
    assert (out.splitlines()[0], failure) == ("Clerk/user-42: repaired.", "")
    assert transcript.problem(history(chat)) is None
    added = history(chat)[-1]
    assert (added.tool_call_id, added.is_error, added.position) == ("b", True, 4)
    assert ToolCall.objects.get(call_id="b").status == "interrupted"
    assert run("--repair") == run()
    assert "1 valid" in run()[0]
    chat.refresh_from_db()
    assert chat.lease_token == ""


def test_an_earlier_turn_is_repaired_beside_an_unfinished_one():
    chat = broken("user-42")
    stored = store_for("database").chat("Clerk", "user-42")
    turn = stored.begin(TurnRequest(Value("user", "Again?")))
    turn.append(Value("assistant", tool_calls=CALLS))
    turn.close()
    # As a bug or a hand might: the first turn's result is gone again.
    ToolCall.objects.filter(message__turn__number=1, call_id="b").update(status="pending")
    Message.objects.filter(turn__number=1, role="tool", is_error=True).delete()
    Message.objects.filter(position=4).delete()
    out, failure = run()
    assert failure, out
    out, failure = run("--repair")
    assert not failure, out
    left_open = ToolCall.objects.filter(message__turn__number=2)
    assert set(left_open.values_list("status", flat=True)) == {"pending"}
    assert Chat.objects.get(pk=chat.pk).open_turn == 2


def test_a_dry_run_writes_nothing():
    broken("user-42")
    before = list(Message.objects.values_list("pk", flat=True)), list(Chat.objects.values())
    out, failure = run("--repair", "--dry-run")
    assert failure
    assert "0 repaired, 1 with problems" in out
    assert before == (
        list(Message.objects.values_list("pk", flat=True)),
        list(Chat.objects.values()),
    )


def test_a_running_chat_is_not_touched():
    chat = broken("user-42")
    Chat.objects.filter(pk=chat.pk).update(lease_token="f" * 32, lease_expires_at=DatabaseTime(600))
    out, failure = run("--repair")
    assert not failure
    assert "1 skipped" in out
    assert Message.objects.count() == 3


def test_what_can_not_be_mended_is_told():
    chat = talk("user-42")
    turn = Turn.objects.get()
    Message._base_manager.bulk_create(
        [Message(chat=chat, turn=turn, position=50, role="tool", content="whose?")]
    )
    for options in ((), ("--repair",)):
        out, failure = run(*options)
        assert "a result without its call" in out
        assert "whose?" not in out
        assert failure


def test_hostile_names_are_shown_as_text():
    broken("\x1b[2J\u202eevil")
    out, _failure = run()
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_only_what_was_asked_for():
    broken("one")
    broken("two")
    assert "1 chats: 0 valid" in run("--instance", "one")[0]
    assert "2 chats:" in run("--agent", "Clerk")[0]
    assert "0 chats:" in run("--agent", "Other")[0]
    for wrong in (("--batch-size", "0"), ("--dry-run",)):
        assert run(*wrong)[1]


def test_batches_change_nothing_but_the_queries():
    for number in range(7):
        talk(f"user-{number}")
    found = []
    for size in ("1", "3", "100"):
        with CaptureQueriesContext(connection) as captured:
            out, failure = run("--batch-size", size)
        assert not failure
        assert "7 chats: 7 valid" in out
        found.append(len(captured))
    assert found == sorted(found, reverse=True)
    assert found[-1] <= 7 * 4 + 2


class Shortened(Agent):
    model = "nexo/offline"
    context_window = 2_000


def test_compacted_chats_are_checked_by_their_view_too():
    session = Session.resume(Shortened, "user-42")
    for number in range(20):
        session.prompt(f"My number {number} is {number}. " + "It is a long story. " * 20)
    chat = Chat.objects.get()
    assert chat.current_compaction_id is not None
    out, failure = run()
    assert not failure, out
    # As a bug might: the view begins with an answer.
    kept = chat.messages.filter(role="assistant").order_by("position").last()
    Compaction.objects.update(first_kept_position=kept.position, summary=None)
    out, failure = run("--repair")
    assert "in the view" in out
    assert failure


@pytest.mark.parametrize("decided", [False, True])
def test_calls_that_wait_are_no_problem_and_are_left_alone(decided):
    from nexo_django import ToolCall as Call
    from tests.approvals.support import asker, asking, publishing

    question = Call("q", "question", {"text": "Sure?"})
    session = Session.resume(asker(asking(*publishing("a", "b"), question), "bye"), "waits")
    session.prompt("Go.")
    if decided:
        session.approve("a")
        session.deny("b")
    else:
        session.deny("a")
        session.continue_turn()
    before = session.pending()
    assert run() == (
        "1 chats: 1 valid, 0 repaired, 0 with problems, 0 skipped (a turn runs).\n",
        "",
    )
    assert "0 repaired" in run("--repair")[0]
    assert session.pending() == before
