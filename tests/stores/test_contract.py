"""One contract, kept by every store in the same way."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django import transcript
from nexo_django.exceptions import (
    KeyConflict,
    LeaseLost,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
    StoreFailed,
    TurnCancelled,
)
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
from nexo_django.sanitize import clean_message
from nexo_django.stores.base import CANCELLED, DONE, FAILED, STOPPED, TURN_LIMIT, TurnRequest
from nexo_django.stores.jsonl import JSONLStore
from nexo_django.stores.memory import MemoryStore

LONG = 60


class Place:
    """A store, chats that no other test has, and a death of a turn's owner."""

    def __init__(self, store: Any, free: Callable[[str, str], None] | None = None) -> None:
        self.store, self._free = store, free

    def chat(self) -> Any:
        return self.store.chat("Contract", f"user {uuid.uuid4().hex}")

    def abandon(self, chat: Any, turn: Any) -> None:
        """Leave the turn as a killed owner leaves it: nothing said, the lease free."""
        if self._free is None:
            turn.close()
        else:
            self._free(chat.agent_name, chat.instance_id)


def _free_row(agent_name: str, instance_id: str) -> None:
    from nexo_django.models import Chat

    rows = Chat.objects.filter(agent_name=agent_name, instance_id=instance_id)
    assert rows.update(lease_token="", lease_expires_at=None) == 1


class Named:
    """A handle of the database's that tells which chat it is of."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def chat(self, agent_name: str, instance_id: str) -> Any:
        handle = self.store.chat(agent_name, instance_id)
        if not hasattr(handle, "agent_name"):
            handle.agent_name, handle.instance_id = agent_name, instance_id
        return handle


@pytest.fixture(
    params=[
        "memory",
        "jsonl",
        pytest.param("database", marks=pytest.mark.django_db(transaction=True)),
    ]
)
def place(request: Any, tmp_path: Any) -> Place:
    if request.param == "memory":
        return Place(MemoryStore())
    if request.param == "jsonl":
        return Place(JSONLStore(tmp_path))
    from nexo_django.stores.database import DatabaseStore

    return Place(Named(DatabaseStore()), _free_row)


def ask(text: str = "hello", **fields: Any) -> TurnRequest:
    fields = {"wait": 0, "model": "nexo/offline", **fields}
    return TurnRequest(Message(USER, text), **fields)


def go_on(**fields: Any) -> TurnRequest:
    return TurnRequest(None, wait=0, model="nexo/offline", **fields)


def said(chat: Any) -> list[tuple[str, str | None]]:
    """Give what is stored, as roles and texts."""
    return [(m.role, m.content) for m in chat.history() if m.role != SYSTEM]


def shown(turn: Any) -> list[tuple[str, str | None]]:
    return [(m.role, m.content) for m in turn.messages if m.role != SYSTEM]


def answered(chat: Any, text: str = "hello", answer: str = "hi", **fields: Any) -> None:
    """Run a turn that ends well."""
    turn = chat.begin(ask(text, **fields))
    turn.append(Message(ASSISTANT, answer))
    turn.finish(DONE)
    turn.close()


def calls(*names: str) -> Message:
    made = tuple(ToolCall(f"call_{n}", name, {"n": n}) for n, name in enumerate(names, 1))
    return Message(ASSISTANT, None, tool_calls=made)


def test_a_look_makes_no_chat(place: Place) -> None:
    chat = place.chat()
    assert not chat.exists()
    assert chat.view() == []
    assert list(chat.history()) == []
    assert chat.usage() == Usage()
    assert chat.cancel() is False
    assert not chat.exists()


def test_a_turn_is_stored_as_it_is_produced(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("hello"))
    assert (turn.number, turn.key, turn.status, turn.reply) == (1, None, "running", None)
    assert shown(turn) == said(chat) == [(USER, "hello")]
    stored = turn.append(Message(ASSISTANT, "hi", usage=Usage(input=3, output=2)))
    assert stored == Message(ASSISTANT, "hi", usage=stored.usage)
    assert said(chat) == [(USER, "hello"), (ASSISTANT, "hi")]
    assert turn.status == DONE
    assert turn.usage.input == 3
    assert turn.usage.output == 2
    turn.finish(DONE)
    turn.close()
    turn.close()
    assert chat.exists()


def test_the_next_turn_sees_the_one_before(place: Place) -> None:
    chat = place.chat()
    answered(chat, "one", "1")
    turn = chat.begin(ask("two"))
    assert turn.number == 2
    assert shown(turn) == [(USER, "one"), (ASSISTANT, "1"), (USER, "two")]
    turn.close()


def test_an_answer_settles_its_turn_before_it_is_finished(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask(key="k"))
    turn.append(Message(ASSISTANT, "hi"))
    place.abandon(chat, turn)
    again = chat.begin(ask(key="k"))
    assert again.status == DONE
    assert again.reply.content == "hi"
    with pytest.raises(NothingToContinue):
        chat.begin(go_on())


def test_parallel_results_are_in_call_order(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    turn.append(calls("a", "b", "c"))
    for n in (3, 1, 2):
        turn.start_call(ToolCall(f"call_{n}", "x"))
        turn.append(Message(TOOL, f"result {n}", tool_call_id=f"call_{n}"))
    results = [m.content for m in chat.history() if m.role == TOOL]
    assert results == ["result 1", "result 2", "result 3"]
    positions = [m.position for m in chat.history()]
    assert positions == sorted(set(positions))
    turn.close()


def test_results_may_come_from_threads(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    turn.append(calls(*"abcd"))
    failed: list[BaseException] = []

    def run(n: int) -> None:
        try:
            turn.start_call(ToolCall(f"call_{n}", "x"))
            turn.append(Message(TOOL, f"result {n}", tool_call_id=f"call_{n}"))
        except BaseException as error:
            failed.append(error)
        finally:
            _close_connections()

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert failed == []
    assert [m.content for m in chat.history() if m.role == TOOL] == [
        f"result {n}" for n in (1, 2, 3, 4)
    ]
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    assert transcript.problem(chat.view()[:-1]) is None


@pytest.mark.parametrize("status", [DONE, TURN_LIMIT, CANCELLED])
def test_a_key_gives_its_outcome_again(place: Place, status: str) -> None:
    chat = place.chat()
    turn = chat.begin(ask("once", key="k"))
    turn.append(calls("a").replace(content="looking", usage=Usage(input=5, output=1)))
    turn.append(Message(TOOL, "found", tool_call_id="call_1"))
    if status == DONE:
        turn.append(Message(ASSISTANT, "here", usage=Usage(input=2)))
    turn.finish(status)
    turn.close()
    running = chat.begin(ask("meanwhile"))
    before = said(chat)
    again = chat.begin(ask("once", key="k"))
    running.append(Message(ASSISTANT, "hi"))
    running.close()
    assert (again.number, again.key, again.status) == (turn.number, "k", status)
    assert again.usage.total == (8 if status == DONE else 6)
    assert again.reply.content == ("here" if status == DONE else "looking")
    again.close()
    assert said(chat) == [*before, (ASSISTANT, "hi")]
    assert chat.begin(ask("once", key="k")).status == status
    third = chat.begin(ask("a third"))
    assert third.number == 3
    third.close()


def test_a_key_of_a_turn_without_an_answer_gives_none(place: Place) -> None:
    chat = place.chat()
    answered(chat, "before")
    turn = chat.begin(ask("once", key="k"))
    turn.finish(CANCELLED)
    turn.close()
    again = chat.begin(ask("once", key="k"))
    assert (again.number, again.status, again.reply) == (turn.number, CANCELLED, None)
    again.close()


def drafted(chat: Any) -> Any:
    """Begin a turn that has an answer, and more to do."""
    turn = chat.begin(ask("once", key="k"))
    turn.append(Message(ASSISTANT, "a draft", usage=Usage(3, 2)))
    assert turn.status == DONE
    assert chat.cancel() is False
    turn.append(Message(USER, "better"))
    assert turn.status == "running"
    return turn


def test_what_follows_an_answer_is_of_the_same_turn(place: Place) -> None:
    chat = place.chat()
    answered(chat, "before")
    turn = drafted(chat)
    turn.append(calls("a").replace(usage=Usage(10, 1)))
    turn.append(Message(TOOL, "found", tool_call_id="call_1"))
    turn.append(Message(ASSISTANT, "the last word", usage=Usage(20, 4)))
    assert turn.status == DONE
    assert turn.usage == Usage(33, 7)
    assert chat.cancel() is False
    turn.finish(DONE)
    turn.close()
    again = chat.begin(ask("once", key="k"))
    assert (again.number, again.status, again.usage.total) == (turn.number, DONE, 40)
    assert again.reply.content == "the last word"
    with pytest.raises(NothingToContinue):
        chat.begin(go_on())
    assert chat.usage() == turn.usage
    following = chat.begin(ask("the next"))
    assert following.number == turn.number + 1
    following.close()


def test_two_answers_are_one_turn(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("once", key="k"))
    turn.append(Message(ASSISTANT, "a draft", usage=Usage(3, 2)))
    turn.append(Message(ASSISTANT, "the last word", usage=Usage(4, 1)))
    assert turn.status == DONE
    turn.close()
    again = chat.begin(ask("once", key="k"))
    assert (again.status, again.reply.content, again.usage.total) == (DONE, "the last word", 10)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("end", [FAILED, STOPPED, None])
def test_a_turn_that_fails_after_an_answer_can_go_on(
    place: Place, end: str | None, keyed: bool
) -> None:
    chat = place.chat()
    turn = drafted(chat)
    assert chat.cancel() is True
    with pytest.raises(TurnCancelled):
        _check_for_long(turn)
    if end is None:
        place.abandon(chat, turn)
    else:
        turn.finish(end, "RuntimeError")
        turn.close()
    taken = chat.begin(ask("once", key="k") if keyed else go_on())
    assert (taken.number, taken.status, taken.reply) == (turn.number, "running", None)
    assert shown(taken) == [(USER, "once"), (ASSISTANT, "a draft"), (USER, "better")]
    assert taken.usage == Usage(3, 2)
    taken.append(Message(ASSISTANT, "the last word", usage=Usage(4, 1)))
    taken.close()
    again = chat.begin(ask("once", key="k"))
    assert (again.status, again.reply.content, again.usage.total) == (DONE, "the last word", 10)


def test_a_turn_cancelled_after_an_answer_gives_that(place: Place) -> None:
    chat = place.chat()
    turn = drafted(chat)
    turn.finish(CANCELLED)
    turn.close()
    again = chat.begin(ask("once", key="k"))
    assert (again.status, again.reply.content, again.usage.total) == (CANCELLED, "a draft", 5)


@pytest.mark.parametrize(
    "used",
    [
        Usage(input=-5, output=2),
        Usage(2**70, 1),
        Usage(1.5, 1, cost=0.25),  # type: ignore[arg-type]
        Usage(1, 1, cost=Decimal("NaN")),
        Usage(1, 1, cost=Decimal("Infinity")),
        Usage(1, 1, cost=Decimal("1e30")),
        Usage(1, 1, cost=Decimal(-1)),
        Usage(None, "x", cost="free"),  # type: ignore[arg-type]
        Usage(1, 1, raw={"a": object()}),
    ],
)
def test_odd_usage_is_summed_alike_everywhere(place: Place, used: Usage) -> None:
    chat = place.chat()
    turn = chat.begin(ask(key="k"))
    turn.append(calls("a").replace(usage=used))
    turn.append(Message(TOOL, "x", tool_call_id="call_1"))
    turn.append(Message(ASSISTANT, "hi", usage=used))
    turn.close()
    clean = clean_message(Message(ASSISTANT, usage=used)).usage
    assert clean is not None
    assert turn.usage == chat.usage() == clean + clean
    assert chat.begin(ask(key="k")).usage == turn.usage


def test_a_key_with_another_prompt_is_refused(place: Place) -> None:
    chat = place.chat()
    answered(chat, "once", key="k")
    before = said(chat)
    with pytest.raises(KeyConflict) as caught:
        chat.begin(ask("something else", key="k"))
    assert "something else" not in str(caught.value)
    assert said(chat) == before
    answered(chat, "free again")


def test_keys_belong_to_a_chat(place: Place) -> None:
    first, second = place.chat(), place.chat()
    answered(first, "one", key="k")
    answered(second, "two", key="k")
    assert said(second) == [(USER, "two"), (ASSISTANT, "hi")]


def test_a_key_of_a_running_turn_is_busy(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("once", key="k"))
    with pytest.raises(SessionBusy):
        chat.begin(ask("once", key="k"))
    turn.close()


@pytest.mark.parametrize("end", ["abandoned", FAILED, STOPPED])
def test_a_key_continues_what_was_not_finished(place: Place, end: str) -> None:
    chat = place.chat()
    turn = chat.begin(ask("once", key="k"))
    if end == "abandoned":
        place.abandon(chat, turn)
    else:
        turn.finish(end, "RuntimeError")
        turn.close()
    again = chat.begin(ask("once", key="k"))
    assert again.number == turn.number
    assert again.reply is None
    assert again.status == "running"
    assert shown(again) == said(chat) == [(USER, "once")]
    again.append(Message(ASSISTANT, "hi"))
    again.close()
    assert chat.begin(ask("once", key="k")).reply.content == "hi"


def test_a_busy_chat_is_refused_and_nothing_written(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("first"))
    with pytest.raises(SessionBusy) as caught:
        chat.begin(ask("second"))
    assert caught.value.retry_after >= 0
    with pytest.raises(SessionBusy):
        chat.begin(go_on())
    assert said(chat) == [(USER, "first")]
    turn.append(Message(ASSISTANT, "hi"))
    turn.close()
    answered(chat, "second")


def test_who_waits_gets_its_turn(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("first"))
    begun: list[Any] = []

    def wait() -> None:
        try:
            answered(chat, "second", wait=LONG)
            begun.append(True)
        except BaseException as error:
            begun.append(error)
        finally:
            _close_connections()

    thread = threading.Thread(target=wait)
    thread.start()
    turn.append(Message(ASSISTANT, "hi"))
    turn.close()
    thread.join(LONG)
    assert begun == [True]
    assert said(chat) == [(USER, "first"), (ASSISTANT, "hi"), (USER, "second"), (ASSISTANT, "hi")]


def test_there_must_be_something_to_continue(place: Place) -> None:
    chat = place.chat()
    with pytest.raises(SessionNotFound):
        chat.begin(go_on())
    assert not chat.exists()
    answered(chat)
    with pytest.raises(NothingToContinue):
        chat.begin(go_on())
    answered(chat, "still free")


def test_a_call_starts_once_and_has_one_result(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    turn.append(calls("a", "b"))
    turn.start_call(ToolCall("call_1", "a"))
    with pytest.raises(StoreFailed):
        turn.start_call(ToolCall("call_1", "a"))
    turn.append(Message(TOOL, "once", tool_call_id="call_1"))
    with pytest.raises(StoreFailed):
        turn.append(Message(TOOL, "twice", tool_call_id="call_1"))
    turn.append(Message(TOOL, "the other", tool_call_id="call_2"))
    assert [m.content for m in chat.history() if m.role == TOOL] == ["once", "the other"]
    turn.close()


def test_calls_with_one_id_are_told_apart(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    same = (ToolCall("c", "a"), ToolCall("c", "b"))
    stored = turn.append(Message(ASSISTANT, None, tool_calls=same))
    first, second = (call.id for call in stored.calls)
    assert first != second
    turn.append(Message(TOOL, "b's", tool_call_id=second))
    turn.append(Message(TOOL, "a's", tool_call_id=first))
    view = chat.view()
    assert [m.content for m in view if m.role == TOOL] == ["a's", "b's"]
    assert transcript.repaired(view) == view
    turn.close()


def test_an_id_may_come_back_in_a_later_step(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    for n in (1, 2):
        turn.append(calls("a"))
        turn.start_call(ToolCall("call_1", "a"))
        turn.append(Message(TOOL, f"result {n}", tool_call_id="call_1"))
    turn.append(calls("a"))
    place.abandon(chat, turn)
    taken = chat.begin(go_on())
    assert [m.content for m in taken.messages if m.role == TOOL] == ["result 1", "result 2"]
    assert [c.id for c in transcript.open_calls(taken.messages)] == ["call_1"]
    taken.close()


def test_continuing_runs_only_what_may_run(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    turn.append(calls("finished", "started", "again", "waiting"))
    for n in (1, 2, 3):
        turn.start_call(ToolCall(f"call_{n}", "x"))
    turn.append(Message(TOOL, "result 1", tool_call_id="call_1"))
    place.abandon(chat, turn)
    taken = chat.begin(go_on(idempotent=frozenset({"again"})))
    assert taken.number == turn.number
    assert [c.name for c in transcript.open_calls(taken.messages)] == ["again", "waiting"]
    results = {m.tool_call_id: m for m in taken.messages if m.role == TOOL}
    assert results["call_1"].content == "result 1"
    assert results["call_2"].is_error
    for n in (4, 3):
        taken.start_call(ToolCall(f"call_{n}", "x"))
        taken.append(Message(TOOL, f"result {n}", tool_call_id=f"call_{n}"))
    taken.append(Message(ASSISTANT, "done"))
    taken.close()
    view = chat.view()
    assert transcript.repaired(view) == view
    assert [m.tool_call_id for m in view if m.role == TOOL] == [f"call_{n}" for n in (1, 2, 3, 4)]


def test_what_a_turn_used_is_summed_over_its_interruption(place: Place) -> None:
    chat = place.chat()
    answered(chat, "before")
    turn = chat.begin(ask())
    turn.append(calls("a").replace(usage=Usage(input=7, output=2)))
    place.abandon(chat, turn)
    taken = chat.begin(go_on())
    taken.append(Message(TOOL, "x", tool_call_id="call_1"))
    taken.append(Message(ASSISTANT, "done", usage=Usage(input=10, output=1)))
    assert (taken.usage.input, taken.usage.output) == (17, 3)
    taken.close()
    assert chat.usage().input == 17


def test_the_next_prompt_settles_what_was_left_open(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("first", key="k"))
    turn.append(calls("a", "b"))
    turn.start_call(ToolCall("call_2", "b"))
    turn.append(Message(TOOL, "result 2", tool_call_id="call_2"))
    place.abandon(chat, turn)
    following = chat.begin(ask("second"))
    assert following.number == turn.number + 1
    assert transcript.problem(following.messages) is None
    stored = list(chat.history())
    assert [m.role for m in stored] == [USER, ASSISTANT, TOOL, TOOL, USER]
    assert stored[2].is_error
    assert stored[2].tool_call_id == "call_1"
    assert stored[3].content == "result 2"
    following.append(Message(ASSISTANT, "hi"))
    following.close()
    assert chat.view() == [*stored, Message(ASSISTANT, "hi")]


def test_cancelling_is_for_the_running_turn(place: Place) -> None:
    chat = place.chat()
    answered(chat)
    assert chat.cancel() is False
    turn = chat.begin(ask("second"))
    turn.checkpoint()
    assert chat.cancel() is True
    with pytest.raises(TurnCancelled):
        _check_for_long(turn)
    turn.append(Message(ASSISTANT, "half of", status=INTERRUPTED))
    assert turn.status != DONE
    turn.finish(CANCELLED)
    turn.close()
    assert chat.cancel() is False
    third = chat.begin(ask("third"))
    third.checkpoint()
    third.close()


def test_a_lost_lease_can_write_nothing_more(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask("first"))
    turn.append(calls("a"))
    place.abandon(chat, turn)
    other = chat.begin(ask("second"))
    before = said(chat)
    with pytest.raises(LeaseLost):
        turn.append(Message(TOOL, "late", tool_call_id="call_1"))
    with pytest.raises(LeaseLost):
        turn.append(Message(ASSISTANT, "late"))
    with pytest.raises(LeaseLost):
        turn.start_call(ToolCall("call_1", "a"))
    with pytest.raises(LeaseLost):
        turn.finish(DONE)
    with pytest.raises(LeaseLost):
        turn.set_system("late")
    assert said(chat) == before
    turn.close()
    with pytest.raises(SessionBusy):
        chat.begin(ask("third"))
    other.append(Message(ASSISTANT, "hi"))
    other.close()


def test_one_system_message(place: Place) -> None:
    chat = place.chat()
    turn = chat.begin(ask())
    for text in ("Be kind.", "Be brief."):
        system = turn.set_system(text)
        assert (system.role, system.content, system.position) == (SYSTEM, text, 0)
    turn.append(Message(ASSISTANT, "hi"))
    turn.close()
    kept = [m.content for m in chat.view() if m.role == SYSTEM]
    assert kept in (["Be brief."], [])
    assert [m.role for m in chat.view()][-2:] == [USER, ASSISTANT]
    turn = chat.begin(ask())
    assert turn.set_system(None) is None
    turn.close()
    assert all(m.role != SYSTEM for m in chat.view())


def test_usage_is_summed_and_an_unknown_price_stays_unknown(place: Place) -> None:
    chat = place.chat()
    for cost in ("0.25", "0.5"):
        turn = chat.begin(ask())
        turn.append(Message(ASSISTANT, "x", usage=Usage(input=1, output=2, cost=Decimal(cost))))
        turn.close()
    assert chat.usage().cost == Decimal("0.75")
    assert chat.usage().total == 6
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, "x", usage=Usage(input=4)))
    turn.close()
    assert chat.usage().cost is None
    assert chat.usage().input == 6


def test_deleting_leaves_nothing(place: Place) -> None:
    chat, other = place.chat(), place.chat()
    answered(chat, key="k")
    answered(other)
    turn = chat.begin(ask())
    turn.append(calls("a"))
    with pytest.raises(SessionBusy):
        chat.delete()
    assert chat.exists()
    turn.close()
    gone = chat.delete()
    assert sum(gone.values()) >= 6
    assert all(isinstance(n, int) for n in gone.values())
    assert not chat.exists()
    assert chat.view() == []
    answered(chat, "a new one", key="k")
    assert said(chat) == [(USER, "a new one"), (ASSISTANT, "hi")]
    assert said(other) == [(USER, "hello"), (ASSISTANT, "hi")]


def test_chats_are_apart(place: Place) -> None:
    base = uuid.uuid4().hex
    names = [
        f"{base}a",
        f"{base}A",
        f"{base}á",
        f"../{base}a",
        f"{base}🦊",
        f"{base}%2e",
        " " + base,
    ]
    for name in names:
        answered(place.store.chat("Contract", name), name)
        answered(place.store.chat("contract", name), f"other {name}")
    for name in names:
        assert said(place.store.chat("Contract", name)) == [(USER, name), (ASSISTANT, "hi")]


# Lone surrogates, NUL and all the rest of Unicode.
TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
WORDS = st.text(st.characters(exclude_categories=()), min_size=1, max_size=15)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
USAGE = st.builds(
    Usage,
    input=st.integers(0, 10**6),
    output=st.integers(0, 10**6),
    cached=st.integers(0, 10**6),
    cost=st.none() | st.decimals(0, 100, places=6),
)
# Keys of messages to come: none that a message has already.
EXTRA = st.dictionaries(st.sampled_from(["x", "vendor", "née"]), JSON, max_size=2)


@st.composite
def steps(draw: Any) -> list[Message]:
    """Draw an assistant message that calls tools, with its results in any order."""
    ids = draw(st.lists(WORDS, min_size=1, max_size=3, unique_by=lambda t: clean_id(t)))
    made = tuple(ToolCall(id_, draw(WORDS), draw(OBJECT)) for id_ in ids)
    head = Message(
        ASSISTANT,
        draw(st.none() | TEXT),
        tool_calls=made,
        reasoning=draw(st.none() | st.just({"issuer": "x"}) | OBJECT.filter(bool)),
        usage=draw(st.none() | USAGE),
        extra=draw(EXTRA),
    )
    results = [
        Message(TOOL, draw(TEXT), tool_call_id=id_, is_error=draw(st.booleans())) for id_ in ids
    ]
    return [head, *draw(st.permutations(results))]


def clean_id(text: str) -> str:
    return str(clean_message(Message(TOOL, tool_call_id=text)).tool_call_id)


def in_call_order(step: list[Message]) -> list[Message]:
    order = [call.id for call in step[0].calls]
    return [step[0], *sorted(step[1:], key=lambda m: order.index(m.tool_call_id or ""))]


@given(
    prompt=TEXT.filter(str.strip),
    drawn=st.lists(steps(), max_size=3),
    answer=TEXT.filter(str.strip),
    usage=USAGE,
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_message_survives(
    place: Place, prompt: str, drawn: list[list[Message]], answer: str, usage: Usage
) -> None:
    chat = place.chat()
    turn = chat.begin(ask(prompt))
    last = Message(ASSISTANT, answer, finish_reason="stop", usage=usage)
    for message in [*(m for step in drawn for m in step), last]:
        assert turn.append(message) == clean_message(message)
    turn.close()
    wanted = [Message(USER, prompt), *(m for step in drawn for m in in_call_order(step)), last]
    stored = [m for m in chat.history() if m.role != SYSTEM]
    assert stored == [clean_message(message) for message in wanted]
    assert [m.position for m in stored] == list(range(1, len(stored) + 1))
    assert transcript.problem(transcript.sendable(chat.view())) is None


def _check_for_long(turn: Any) -> None:
    """Check again and again: a store may look twice a second only."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        turn.checkpoint()
        time.sleep(0.01)


def _close_connections() -> None:
    from django.db import connections

    connections.close_all()
