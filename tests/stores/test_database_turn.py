"""An open turn in the database: what each write does, and what it leaves alone."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from nexo_django import transcript
from nexo_django.exceptions import LeaseLost, StoreFailed, TurnCancelled
from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.models import Chat, Turn
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as CallRow
from nexo_django.stores.base import CANCELLED, DONE, TURN_LIMIT
from tests.models.support import (
    abandon,
    answer,
    ask,
    calling,
    contents,
    dump,
    eventually,
    new_chat,
    result,
    row_of,
    side_by_side,
)

pytestmark = pytest.mark.django_db
real = pytest.mark.django_db(transaction=True)


def plain_turn(chat: Any) -> None:
    turn = chat.begin(ask("hello"))
    turn.set_system("be kind")
    turn.append(Message(ASSISTANT, "hi", usage=Usage(10, 5)))
    turn.finish(DONE)
    turn.close()


def statements(chat: Any) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        plain_turn(chat)
    return [query["sql"] for query in captured.captured_queries]


def fill(chat: Any, count: int) -> None:
    row = row_of(chat)
    first = row.next_position
    rows = [
        Row(chat=row, position=first + n, role=("user", "assistant")[n % 2], content=f"filler {n}")
        for n in range(count)
    ]
    Row._base_manager.bulk_create(rows)
    Chat.objects.filter(pk=row.pk).update(next_position=first + count)


@real
def test_a_turn_takes_few_statements_whatever_the_history() -> None:
    chat = new_chat()
    plain_turn(chat)
    plain_turn(chat)
    counted = []
    for filler in (10, 2000):
        fill(chat, filler)
        counted.append(statements(chat))
    short, long = (len(found) for found in counted)
    assert short == long
    assert short <= 16
    assert not any("SAVEPOINT" in sql for sql in counted[0])


def test_positions_are_kept_for_results() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a", "b", "c"))
    stored = [turn.append(result(n)) for n in (2, 0, 1)]
    assert [m.position for m in stored] == [5, 3, 4]
    assert turn.append(Message(ASSISTANT, "done")).position == 6
    turn.close()
    assert [m.position for m in chat.history()] == [1, 2, 3, 4, 5, 6]
    assert row_of(chat).next_position == 7


def test_a_result_and_its_call_are_settled_together() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a", "b", "c", "d"))
    turn.start_call(calling("a").calls[0])
    call = CallRow.objects.get(call_id="call_0")
    assert (call.status, call.finished) == ("running", None)
    assert call.started is not None
    turn.append(result(0))
    turn.append(result(1, is_error=True))
    turn.append(result(2, status=INTERRUPTED, is_error=True))
    statuses = CallRow.objects.order_by("index").values_list("status", flat=True)
    assert list(statuses) == ["done", "failed", "interrupted", "pending"]
    call.refresh_from_db()
    assert call.finished is not None
    assert call.result.content == "result 0"
    assert call.result.turn.number == 1
    turn.close()


def test_a_call_has_one_result() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    turn.append(result(0, "first"))
    before = dump()
    with pytest.raises(StoreFailed, match="call_0"):
        turn.append(result(0, "second"))
    assert dump() == before
    turn.append(Message(ASSISTANT, "done"))
    turn.close()


@real
def test_two_results_at_once_are_one() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    outcomes = side_by_side(*[lambda: turn.append(result(0))] * 3)
    assert sum(isinstance(outcome, StoreFailed) for outcome in outcomes) == 2
    assert Row.objects.filter(role="tool").count() == 1
    turn.close()


def test_a_call_is_started_once() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    call = calling("a").calls[0]
    turn.start_call(call)
    with pytest.raises(StoreFailed, match="started before"):
        turn.start_call(call)
    turn.start_call(ToolCall("of no step", "x"))
    turn.close()


def test_calls_get_ids_of_their_own() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    same = ToolCall("same", "x", {"n": 1})
    stored = turn.append(Message(ASSISTANT, None, tool_calls=(same, same, ToolCall("", "y"))))
    ids = [call.id for call in stored.calls]
    assert len(set(ids)) == 3
    assert ids[0] == "same"
    for id_ in reversed(ids):
        turn.start_call(ToolCall(id_, "x"))
        turn.append(Message(TOOL, f"of {id_}", tool_call_id=id_))
    turn.close()
    assert [m.content for m in chat.view() if m.role == TOOL] == [f"of {id_}" for id_ in ids]


def test_an_id_may_be_repeated_in_the_next_step() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    for text in ("one", "two"):
        turn.append(calling("a"))
        turn.start_call(calling("a").calls[0])
        turn.append(result(0, text))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    assert [m.content for m in chat.view() if m.role == TOOL] == ["one", "two"]
    assert transcript.repaired(chat.view()) == chat.view()


@pytest.mark.parametrize("length", [191, 192, 3000])
def test_an_id_may_be_long(length: int) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    long = "é" * length
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall(long, "n" * length),)))
    turn.start_call(ToolCall(long, "n"))
    turn.append(Message(TOOL, "found", tool_call_id=long))
    turn.close()
    _, asking, answering = chat.history()
    assert asking.calls[0].id == answering.tool_call_id == long
    assert asking.calls[0].name == "n" * length


def test_long_ids_that_begin_alike_are_two() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    ids = ["x" * 5000, "x" * 5000 + "y", "x" * 191, "x" * 192]
    turn.append(Message(ASSISTANT, None, tool_calls=tuple(ToolCall(id_, "n") for id_ in ids)))
    for id_ in reversed(ids):
        turn.start_call(ToolCall(id_, "n"))
        turn.append(Message(TOOL, f"of {len(id_)}", tool_call_id=id_))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    results = [m for m in chat.history() if m.role == TOOL]
    assert [m.tool_call_id for m in results] == ids
    assert [m.content for m in results] == [f"of {len(id_)}" for id_ in ids]


def test_a_result_without_a_call_is_kept_and_not_shown() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(Message(TOOL, "of nothing", tool_call_id="gone"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    assert contents(list(chat.history())) == ["hello", "of nothing", "done"]
    assert contents(chat.view()) == ["hello", "done"]


def test_a_message_from_outside_takes_no_ones_place() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    Row.objects.create(chat=row_of(chat), role="user", kind="notice", content="from outside")
    turn.append(result(0))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    said = ["hello", None, "result 0", "from outside", "done"]
    assert contents(list(chat.history())) == said
    assert row_of(chat).message_count == 5


def test_the_system_message_is_written_when_it_changes() -> None:
    chat = new_chat()
    plain_turn(chat)
    turn = chat.begin(ask())
    with CaptureQueriesContext(connection) as captured:
        same = turn.set_system("be kind")
    assert len(captured) == 0
    assert same == Message(SYSTEM, "be kind")
    changed = turn.set_system("be brief \x00")
    assert changed == Message(SYSTEM, "be brief \ufffd")
    assert contents(list(chat.history()))[0] == "be brief \ufffd"
    assert turn.append(Message(SYSTEM, "as a message")) == Message(SYSTEM, "as a message")
    assert turn.set_system(None) is None
    assert turn.set_system("") is None
    row = row_of(chat)
    assert row.message_count == Row.objects.filter(chat=row).count() == 3
    assert row.token_count == sum(Row.objects.values_list("token_count", flat=True))
    assert turn.set_system("again") == Message(SYSTEM, "again")
    turn.close()
    assert chat.view()[0] == Message(SYSTEM, "again")


@pytest.mark.parametrize(
    ("message", "status", "left"),
    [
        (Message(ASSISTANT, "done"), DONE, None),
        (Message(ASSISTANT, None), DONE, None),
        (Message(ASSISTANT, "do", status=INTERRUPTED), "running", 1),
        (calling("a"), "running", 1),
        (Message(USER, "more"), "running", 1),
    ],
)
def test_an_answer_ends_the_turn(message: Message, status: str, left: int | None) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(message)
    assert turn.status == Turn.objects.get().status == status
    assert row_of(chat).open_turn == left
    assert (Turn.objects.get().finished is None) is (status == "running")
    turn.close()


@pytest.mark.parametrize(
    ("status", "left"),
    [(TURN_LIMIT, None), (CANCELLED, None), ("failed", 1), ("awaiting_approval", 1)],
)
def test_another_end_is_said(status: str, left: int | None) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.finish(status, "E" * 200)
    row = Turn.objects.get()
    assert (row.status, row.error) == (status, "E" * 100)
    assert row_of(chat).open_turn == left
    turn.close()


def test_a_done_turn_stays_done() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, "done"))
    turn.finish("failed", "RuntimeError")
    assert Turn.objects.get().status == DONE
    turn.close()
    with pytest.raises(LeaseLost):
        turn.append(Message(ASSISTANT, "after the end"))
    with pytest.raises(LeaseLost):
        turn.checkpoint()


@real
def test_a_turn_that_was_replaced_can_do_nothing() -> None:
    chat = new_chat()
    turn = chat.begin(ask("first"))
    turn.append(calling("a"))
    abandon(chat)
    other = chat.begin(ask("second"))
    before = dump()
    late: list[Any] = [
        lambda: turn.append(result(0)),
        lambda: turn.append(Message(ASSISTANT, "late")),
        lambda: turn.append(Message(USER, "late")),
        lambda: turn.set_system("late"),
        lambda: turn.start_call(calling("a").calls[0]),
        lambda: turn.finish("failed"),
    ]
    for write in late:
        with pytest.raises(LeaseLost, match="took over"):
            write()
    with pytest.raises(LeaseLost):
        eventually(turn.checkpoint)
    turn.close()
    assert dump() == before
    other.close()


def test_a_cancellation_is_seen_between_chunks() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.checkpoint()
    chat.cancel()
    with pytest.raises(TurnCancelled):
        eventually(turn.checkpoint)
    stored = turn.append(Message(ASSISTANT, "half of", status=INTERRUPTED))
    turn.finish(CANCELLED)
    turn.close()
    assert stored.status == INTERRUPTED
    assert chat.view()[-1] == stored


@real
def test_a_checkpoint_that_can_not_ask_lets_the_turn_go_on(caplog: Any) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    table, aside = "nexo_django_chat", "nexo_django_chat_aside"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {aside}")
    try:
        eventually(lambda: turn.checkpoint() or "checkpoint" in caplog.text)
        with pytest.raises(StoreFailed):
            turn.append(Message(ASSISTANT, "hi"))
        turn.close()
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {aside} RENAME TO {table}")
    assert contents(chat.view()) == ["hello"]
    assert turn.status == "running"


@real
def test_no_connection_is_held_between_writes() -> None:
    """With CONN_MAX_AGE 0, as Django has it, whatever waits for a model holds none."""
    if connection.vendor == "sqlite":
        pytest.skip("no server has to hold a connection")
    chat = new_chat()
    turn = chat.begin(ask())
    seen = [connection.connection]
    turn.append(calling("a"))
    seen.append(connection.connection)
    turn.start_call(calling("a").calls[0])
    seen.append(connection.connection)
    turn.append(result(0))
    seen.append(connection.connection)
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    seen.append(connection.connection)
    assert seen == [None] * 5


@real
def test_a_tools_thread_leaves_no_connection_behind() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    left: list[Any] = []

    def work() -> None:
        turn.start_call(calling("a").calls[0])
        turn.append(result(0))
        left.append(connections["default"].connection)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert left == [None]
    turn.close()


def test_usage_is_summed_on_the_turn() -> None:
    chat = new_chat()
    answer(chat)
    turn = chat.begin(ask())
    turn.append(calling("a").replace(usage=Usage(5, 2, 1, 1, 1)))
    turn.append(result(0))
    turn.append(Message(ASSISTANT, "done", usage=Usage(7, 1)))
    turn.close()
    row = Turn.objects.get(number=2)
    assert row.usage == turn.usage == Usage(12, 3, 1, 1, 1)
    assert row.cost is None


def test_more_tokens_than_a_column_holds() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, "x", usage=Usage(2**70, 1)))
    turn.close()
    assert Turn.objects.get().input_tokens == 2**31 - 1
    assert row_of(chat).input_tokens == 2**31 - 1


def test_more_cost_than_a_column_holds() -> None:
    chat, most = new_chat(), Decimal(99_999_999)
    for _ in range(2):
        turn = chat.begin(ask())
        for _ in range(2):
            turn.append(Message(ASSISTANT, "x", usage=Usage(1, 1, cost=Decimal("99999999.9"))))
        turn.close()
    assert [row.cost for row in Turn.objects.all()] == [most, most]
    assert row_of(chat).cost == most
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, "x", usage=Usage(1, 1)))
    turn.append(Message(ASSISTANT, "x", usage=Usage(1, 1, cost=Decimal(1))))
    turn.close()
    assert row_of(chat).cost is None


@real
def test_an_answer_that_was_not_the_last_is_two_columns_in_its_transaction() -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, "a draft"))
    assert Turn.objects.get().finished is not None
    turn.append(Message(USER, "better"))
    row = Turn.objects.get()
    assert (row.status, row.finished, row_of(chat).open_turn) == ("running", None, 1)
    before = dump()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE nexo_django_turn RENAME TO nexo_django_turn_aside")
    try:
        with pytest.raises(StoreFailed):
            turn.append(Message(ASSISTANT, "hi"))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE nexo_django_turn_aside RENAME TO nexo_django_turn")
    assert dump() == before
    assert turn.status == "running"
    turn.append(Message(ASSISTANT, "the last word"))
    assert (Turn.objects.get().status, row_of(chat).open_turn) == (DONE, None)
    turn.close()


@real
def test_a_forked_child_can_do_nothing_with_its_parents_turn(monkeypatch: Any) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    turn.append(calling("a"))
    before = dump()
    monkeypatch.setattr(turn.lease, "pid", 0)
    late: list[Any] = [
        lambda: turn.append(result(0)),
        lambda: turn.set_system("late"),
        lambda: turn.start_call(calling("a").calls[0]),
        lambda: turn.finish("failed"),
        turn.checkpoint,
    ]
    # Another thread may have had the lock when the process was forked.
    turn._lock = None
    for write in late:
        with pytest.raises(LeaseLost, match="forked"):
            write()
    turn.close()
    assert dump() == before
