"""The chat in the database: one row for a pair, one turn at a time, and nothing half done."""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection, transaction
from django.test import TestCase

from nexo_django.exceptions import (
    InsideTransaction,
    KeyConflict,
    NothingToContinue,
    SessionBusy,
    StoreFailed,
)
from nexo_django.messages import ASSISTANT, SYSTEM, Message, Usage
from nexo_django.models import (
    Chat,
    Compaction,
    Model,
    SandboxFile,
    ToolCall,
    ToolOutput,
    Turn,
)
from nexo_django.models import Message as Row
from nexo_django.models.clock import DatabaseTime
from nexo_django.stores.base import DONE, FAILED, STOPPED
from nexo_django.stores.database import DatabaseStore
from tests.models.support import (
    LONG,
    abandon,
    answer,
    ask,
    calling,
    contents,
    dump,
    go_on,
    new_chat,
    result,
    row_of,
    side_by_side,
)

pytestmark = pytest.mark.django_db
real = pytest.mark.django_db(transaction=True)


@real
def test_a_chat_is_made_with_its_first_turn() -> None:
    chat = new_chat()
    assert not chat.exists()
    turn = chat.begin(ask("hello", key="k"))
    row = row_of(chat)
    assert row.lease_token
    assert (row.open_turn, row.next_turn, row.next_position, row.message_count) == (1, 2, 2, 1)
    assert row.model is not None
    assert row.model.litellm_id == "nexo/offline"
    stored = Turn.objects.get(chat=row)
    assert (stored.number, stored.key, stored.status) == (1, "k", "running")
    assert len(stored.fingerprint) == 64
    prompt = Row.objects.get(chat=row)
    assert (prompt.turn, prompt.position, prompt.role) == (stored, 1, "user")
    turn.close()
    assert row_of(chat).lease_token == ""


@real
def test_a_pair_has_one_chat_whoever_comes_first() -> None:
    handle = new_chat()

    def prompt() -> None:
        answer(DatabaseStore().chat(handle.agent_name, handle.instance_id), wait=LONG)

    assert side_by_side(*[prompt] * 5) == [None] * 5
    row = row_of(handle)
    assert (row.next_turn, row.next_position, row.message_count) == (6, 11, 10)
    assert [m.role for m in handle.history()] == ["user", "assistant"] * 5
    assert list(Turn.objects.values_list("status", flat=True)) == [DONE] * 5


def test_a_busy_chat_is_left_as_it_was() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first", key="k"))
    before = dump()
    for request in (ask("second"), ask("first", key="k"), go_on(), ask("x", model="new/model")):
        with pytest.raises(SessionBusy) as caught:
            chat.begin(request)
        assert 0 < caught.value.retry_after <= 30
    with pytest.raises(SessionBusy):
        chat.delete()
    assert dump() == before
    turn.close()


@real
def test_who_waits_comes_next() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        answer(chat, "second", wait=LONG)

    def first() -> None:
        assert waiting.wait(LONG)
        turn.append(Message(ASSISTANT, "answer to first"))
        turn.close()

    assert side_by_side(second, first) == [None, None]
    said = ["first", "answer to first", "second", "answer to second"]
    assert contents(chat.view()) == said


def test_waiting_ends_when_it_was_to_end() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    begun = time.monotonic()
    with pytest.raises(SessionBusy):
        chat.begin(ask("second", wait=0.3))
    assert time.monotonic() - begun >= 0.3
    turn.close()


def test_the_wait_is_a_setting(settings: Any) -> None:
    settings.NEXO = {**settings.NEXO, "TURN_WAIT": 0}
    chat = new_chat()
    turn = chat.begin(ask("first"))
    with pytest.raises(SessionBusy):
        chat.begin(ask("second", wait=None))
    turn.close()


def test_a_lease_that_ran_out_is_taken_and_its_turn_settled() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    Chat.objects.filter(pk=row_of(chat).pk).update(lease_expires_at=DatabaseTime(-1))
    following = chat.begin(ask("second"))
    assert following.number == 2
    assert contents(following.messages) == ["first", "second"]
    first = Turn.objects.get(number=1)
    assert (first.status, first.finished is None) == (STOPPED, False)
    turn.close()
    assert row_of(chat).lease_token == following.lease.token  # type: ignore[union-attr]
    following.close()


def test_a_failed_turn_stays_failed() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    turn.finish(FAILED, "RateLimited")
    turn.close()
    answer(chat, "second")
    first = Turn.objects.get(number=1)
    assert (first.status, first.error) == (FAILED, "RateLimited")


@real
def test_a_key_is_one_turn_however_often_it_comes() -> None:
    handle = new_chat()

    def deliver() -> str | None:
        chat = DatabaseStore().chat(handle.agent_name, handle.instance_id)
        turn = chat.begin(ask("once", key="k", wait=LONG))
        if turn.reply is None:
            turn.append(Message(ASSISTANT, "the reply", usage=Usage(3, 2, cost=Decimal("0.5"))))
            turn.close()
            return None
        assert turn.usage == Usage(3, 2, cost=Decimal("0.5"))
        return turn.reply.content

    assert sorted(side_by_side(*[deliver] * 4), key=str) == [None, *["the reply"] * 3]
    assert contents(list(handle.history())) == ["once", "the reply"]
    assert Turn.objects.count() == 1


def test_a_key_that_was_passed_over_can_not_go_on() -> None:
    chat = new_chat()
    chat.begin(ask("first", key="k"))
    abandon(chat)
    answer(chat, "second")
    before = dump()
    with pytest.raises(NothingToContinue, match="new key"):
        chat.begin(ask("first", key="k"))
    with pytest.raises(KeyConflict):
        chat.begin(ask("other", key="k"))
    assert dump() == before


def test_continuing_is_the_same_turn_again() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a").replace(usage=Usage(5, 1)))
    turn.append(result(0))
    turn.finish(FAILED, "ProviderTimeout")
    turn.close()
    again = chat.begin(go_on())
    row = Turn.objects.get()
    assert (row.status, row.error, row.finished) == ("running", "", None)
    assert again.usage.total == 6
    again.append(Message(ASSISTANT, "done", usage=Usage(7, 1)))
    again.close()
    row.refresh_from_db()
    assert (row.status, row.input_tokens, row.output_tokens) == (DONE, 12, 2)
    assert row.finished is not None
    assert row_of(chat).open_turn is None


def test_the_model_is_the_turns() -> None:
    chat = new_chat()
    for name in ("one/model", "one/model", "other/model"):
        answer(chat, model=name)
        row = row_of(chat)
        assert row.model is not None
        assert row.model.litellm_id == name
        last = Row.objects.filter(chat=row, role="assistant").order_by("-position").first()
        assert last is not None
        assert last.model == row.model
    assert Model.objects.count() == 2
    Model.objects.all().delete()
    answer(chat, model="one/model")
    answer(chat, model=None)
    assert row_of(chat).model_id == Model.objects.get().pk


@real
def test_nothing_runs_inside_a_transaction() -> None:
    chat = new_chat()
    with transaction.atomic(), pytest.raises(InsideTransaction):
        chat.begin(ask())
    assert not chat.exists()


class TestInsideDjangosTestCase(TestCase):
    def test_a_whole_turn(self) -> None:
        chat = new_chat()
        turn = chat.begin(ask())
        turn.set_system("be kind")
        turn.append(calling("a"))
        turn.start_call(calling("a").calls[0])
        turn.append(result(0))
        turn.append(Message(ASSISTANT, "done"))
        turn.close()
        assert [m.role for m in chat.view()] == ["system", "user", "assistant", "tool", "assistant"]
        assert row_of(chat).lease_token == ""


def test_cancelling_names_the_running_turn() -> None:
    chat = new_chat()
    answer(chat)
    assert not chat.cancel()
    turn = chat.begin(ask())
    assert chat.cancel()
    assert row_of(chat).cancel_turn == 2
    Chat.objects.filter(pk=row_of(chat).pk).update(lease_expires_at=DatabaseTime(-1))
    assert not chat.cancel()
    turn.close()
    following = chat.begin(ask())
    assert row_of(chat).cancel_turn is None
    following.close()


@real
def test_deleting_counts_what_went_by_kind(tmp_path: Any, settings: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    chat, other = new_chat(), new_chat()
    answer(other)
    turn = chat.begin(ask())
    turn.set_system("be kind")
    turn.append(calling("a", "b"))
    turn.append(result(0))
    turn.append(result(1))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    row = row_of(chat)
    parent = Compaction.objects.create(chat=row, version=1)
    row.current_compaction = Compaction.objects.create(
        chat=row, version=2, parent=parent, summary=row.messages.get(position=1)
    )
    row.save()
    output = ToolOutput.objects.create(chat=row, message=row.messages.get(position=3), text="x")
    output.file.save("x", ContentFile(b"large"))
    SandboxFile.objects.create(chat=row, path="a.txt", content=b"x")
    kept = output.file.name
    assert default_storage.exists(kept)
    assert chat.delete() == {
        "chats": 1,
        "turns": 1,
        "messages": 6,
        "tool_calls": 2,
        "compactions": 2,
        "outputs": 1,
        "files": 1,
    }
    assert not default_storage.exists(kept)
    assert chat.delete() == {}
    assert Chat.objects.count() == 1
    assert contents(other.view()) == ["hello", "answer to hello"]
    assert Compaction.objects.count() == ToolOutput.objects.count() == 0


@real
def test_deleting_in_a_transaction_is_undone_with_it(tmp_path: Any, settings: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    chat = new_chat()
    answer(chat)
    row = row_of(chat)
    file = SandboxFile.objects.create(chat=row, path="large")
    file.file.save("large", ContentFile(b"large"))
    before = dump()

    def undone() -> None:
        with transaction.atomic():
            assert chat.delete()["messages"] == 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        undone()
    assert dump() == before
    assert default_storage.exists(file.file.name)


def test_the_rows_of_a_deleted_user_stay(django_user_model: Any) -> None:
    user = django_user_model.objects.create(username="u")
    chat = new_chat()
    answer(chat)
    Chat.objects.filter(pk=row_of(chat).pk).update(user=user)
    user.delete()
    assert row_of(chat).user is None
    assert len(chat.view()) == 2


def test_a_chat_that_is_deleted_as_a_whole() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    turn.append(result(0))
    turn.close()
    row = row_of(chat)
    row.current_compaction = Compaction.objects.create(
        chat=row, version=1, summary=row.messages.get(position=1)
    )
    row.save()
    row.delete()
    assert Row.objects.count() == ToolCall.objects.count() == Compaction.objects.count() == 0


def test_usage_is_read_from_the_chats_row(django_assert_num_queries: Any) -> None:
    chat = new_chat()
    for cost in ("0.5", "0.25"):
        turn = chat.begin(ask())
        turn.append(Message(ASSISTANT, "x", usage=Usage(10, 5, cost=Decimal(cost))))
        turn.close()
    with django_assert_num_queries(1):
        assert chat.usage() == Usage(20, 10, cost=Decimal("0.75"))


@real
def test_a_table_that_is_not_there_is_a_store_that_failed() -> None:
    chat = new_chat()
    answer(chat)
    table = connection.ops.quote_name("nexo_django_chat")
    aside = connection.ops.quote_name("nexo_django_chat_aside")
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {aside}")
    try:
        for look in (chat.exists, chat.view, chat.usage, chat.cancel, chat.delete):
            with pytest.raises(StoreFailed, match="migrate"):
                look()
        with pytest.raises(StoreFailed, match="migrate"):
            chat.begin(ask())
        with pytest.raises(StoreFailed):
            list(chat.history())
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {aside} RENAME TO {table}")
    assert len(chat.view()) == 2


def test_a_view_in_no_turn_changes_nothing() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    before = dump()
    assert [m.role for m in chat.view()] == ["user", "assistant", "tool"]
    assert [m.role for m in chat.history()] == ["user", "assistant"]
    assert dump() == before
    turn.close()
    assert SYSTEM not in {m.role for m in chat.view()}
