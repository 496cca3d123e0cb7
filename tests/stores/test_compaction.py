"""Compaction through sessions, on every store: lossless, told truly, and undone step by step."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from django.conf import settings as django_settings

from nexo_django import Session, transcript
from nexo_django.exceptions import SessionBusy, SessionNotFound, StoreFailed
from nexo_django.messages import (
    ASSISTANT,
    NORMAL,
    SUMMARY,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.pipeline import Env
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.choice import default_store
from nexo_django.tools import tool
from tests.stores.changes import change
from tests.support import Script, asking, call, make_agent

TURNS = 60
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
STORES = [
    "memory",
    "jsonl",
    pytest.param("database", marks=pytest.mark.django_db(transaction=True)),
]


@pytest.fixture(params=STORES)
def store(request: Any, tmp_path: Any, settings: Any) -> str:
    chosen = f"jsonl:{tmp_path / 'logs'}" if request.param == "jsonl" else request.param
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": chosen}
    return str(request.param)


@tool
def look(size: int) -> str:
    """Give so many words."""
    return " ".join(random.Random(size).choices(WORDS, k=size))


class Model(Script):
    """A model that calls tools and answers at random; it knows what it was asked, and when."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.stored: Any = None
        self.asked: list[tuple[int, list[Message]]] = []

    def __call__(self, env: Env) -> None:
        self.steps = [self._next()]
        super().__call__(env)
        position = max(m.position or 0 for m in self.stored.history() if m.position is not None)
        # The answer is the history's last by now, whatever it reserved.
        self.asked.append((position - 1, self.requests[-1]))

    def _next(self) -> Message:
        used = Usage(input=0, output=self.dice.randint(1, 9), cost=Decimal("0.25"))
        if self.dice.random() < 0.4:
            calls = [call("look", size=self.dice.randint(5, 150)) for _ in range(2)]
            return asking(*calls).replace(usage=used)
        words = " ".join(self.dice.choices(WORDS, k=self.dice.randint(1, 60)))
        return Message(ASSISTANT, words, usage=used)


class Talk:
    """A session that compacts often, and what was told of it."""

    def __init__(self, seed: int) -> None:
        self.model = Model(seed)
        agent = make_agent(
            self.model, tools=[look], context_window=3000, instructions="Be kind.", max_turns=100
        )
        self.session = Session.resume(agent, uuid.uuid4().hex)
        self.model.stored = self.session.stored
        self.compactions: list[int] = []
        self.spent: list[Usage] = []

    def prompt(self, text: str) -> None:
        def told(type: str, payload: Any) -> None:
            if type == "compacted":
                self.compactions.append(len(self.model.requests))

        self.spent.append(self.session.prompt(text, on_event=told).usage)


def said(messages: Sequence[Message]) -> list[Message]:
    return [m for m in messages if m.role != SYSTEM]


def conversed(seed: int) -> Talk:
    talk, dice = Talk(seed), random.Random(seed + 1)
    talk.prompt("My name is Mac.")
    history = talk.session.history()
    for number in range(TURNS - 1):
        talk.prompt(f"{number}: " + " ".join(dice.choices(WORDS, k=dice.randint(1, 40))))
        longer = talk.session.history()
        assert said(longer)[: len(said(history))] == said(history)
        history = longer
    return talk


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_conversation(store: str, seed: int) -> None:
    talk = conversed(seed)
    stored, model = talk.session.stored, talk.model
    assert len(talk.compactions) >= 5
    history = said(talk.session.history())

    # Everything is there once, as it was said.
    prompts = [m.content for m in history if m.role == USER and m.kind == NORMAL]
    assert (prompts[0], len(prompts)) == ("My name is Mac.", TURNS)
    assert transcript.problem(transcript.sendable(history)) is None
    positions = [m.position or 0 for m in history]
    assert positions == sorted(set(positions))

    # A request begins with the one before, unless a compaction came between them.
    for index, (_, request) in enumerate(model.asked[1:], start=1):
        if index not in talk.compactions:
            earlier = model.asked[index - 1][1]
            assert [m.to_dict() for m in request[: len(earlier)]] == [m.to_dict() for m in earlier]

    # What the model saw at any time can be seen again.
    for position, request in model.asked:
        assert said(transcript.sendable(stored.view(as_of=position))) == said(request)
    assert said(stored.view(as_of=10**6)) == said(stored.view())

    # Every call is paid once, those for the summaries too.
    assert sum(talk.spent, Usage()) == stored.usage()
    assert stored.usage() == sum((m.usage for m in history if m.usage), Usage())
    assert any(m.usage for m in history if m.kind == SUMMARY)

    # Back to the beginning, step by step; nothing is deleted.
    for _ in talk.compactions:
        assert stored.undo_compaction()
    assert not stored.undo_compaction()
    assert said(stored.view()) == [m for m in history if m.kind == NORMAL]
    assert said(talk.session.history()) == history
    assert stored.usage() == sum(talk.spent, Usage())


def chat_of() -> Any:
    return default_store().chat("Compaction", uuid.uuid4().hex)


def ask(text: str) -> TurnRequest:
    return TurnRequest(Message(USER, text), wait=0, model="nexo/offline")


def answered(chat: Any, *texts: str) -> None:
    for text in texts:
        turn = chat.begin(ask(text))
        turn.append(Message(ASSISTANT, f"answer {text}", usage=Usage(input=5)))
        turn.close()


def contents(messages: Sequence[Message]) -> list[str | None]:
    return [m.content for m in messages if m.role != SYSTEM]


def compacted(chat: Any, text: str, keep: int) -> None:
    """Put a summary in the place of all but the last messages, outside any turn."""
    turn = chat.maintain(wait=0)
    view = turn.messages
    turn.compacted(change(view, Message(USER, text, kind=SUMMARY), *view[-keep:]))
    turn.close()


def die(chat: Any, turn: Any) -> None:
    """Leave the turn as a killed owner does: nothing said, the lease free."""
    if not hasattr(turn, "lease"):
        turn.close()
        return
    from nexo_django.models import Chat

    Chat.objects.filter(pk=turn.row.chat_id).update(lease_token="", lease_expires_at=None)


def test_undone_compactions_stay_what_was_seen_then(store: str) -> None:
    chat = chat_of()
    answered(chat, "1", "2")
    first = list(chat.history())[-1].position
    compacted(chat, "one", 2)
    answered(chat, "3")
    second = list(chat.history())[-1].position
    compacted(chat, "two", 1)
    answered(chat, "4")
    third = list(chat.history())[-1].position
    assert chat.undo_compaction()
    answered(chat, "5")
    fourth = list(chat.history())[-1].position
    compacted(chat, "three", 1)
    assert contents(chat.view()) == ["three", "answer 5"]
    for position, texts in (
        (first, ["one", "2", "answer 2"]),
        (first - 1, ["1", "answer 1", "2"]),
        (second - 1, ["one", "2", "answer 2", "3"]),
        (second, ["two", "answer 3"]),
        (third - 1, ["two", "answer 3", "4"]),
        # Undone when it was the last.
        (third, ["one", "2", "answer 2", "3", "answer 3", "4", "answer 4"]),
        (fourth - 1, ["one", "2", "answer 2", "3", "answer 3", "4", "answer 4", "5"]),
        (fourth, ["three", "answer 5"]),
    ):
        assert contents(chat.view(as_of=position)) == texts
    assert chat.undo_compaction()
    assert chat.undo_compaction()
    assert not chat.undo_compaction()
    numbers = [text for n in range(1, 6) for text in (str(n), f"answer {n}")]
    assert contents(chat.view()) == numbers
    kept = [m.content for m in chat.history() if m.kind == SUMMARY]
    assert kept == ["one", "two", "three"]


def test_who_dies_after_the_commit_has_compacted(store: str) -> None:
    chat = chat_of()
    answered(chat, "1", "2")
    turn = chat.begin(ask("3"))
    view = said(turn.messages)
    shown = turn.compacted(change(view, Message(USER, "so far", kind=SUMMARY), *view[-1:]))
    die(chat, turn)
    again = chat.begin(TurnRequest(None, wait=0, model="nexo/offline"))
    assert contents(again.messages) == contents(shown) == ["so far", "3"]
    again.append(Message(ASSISTANT, "answer 3"))
    again.close()
    assert contents(chat.view()) == ["so far", "3", "answer 3"]


def test_who_dies_before_it_has_not(store: str) -> None:
    chat = chat_of()
    answered(chat, "1", "2")
    turn = chat.begin(ask("3"))
    die(chat, turn)
    again = chat.begin(ask("4"))
    assert contents(again.messages) == ["1", "answer 1", "2", "answer 2", "3", "4"]
    again.close()


def test_open_calls_outlive_a_compaction(store: str) -> None:
    chat = chat_of()
    answered(chat, "1", "2")
    turn = chat.begin(ask("3"))
    calls = (ToolCall("c1", "a"), ToolCall("c2", "b"), ToolCall("c3", "d"))
    turn.append(asking(*calls))
    turn.start_call(calls[0])
    turn.append(Message(TOOL, "done", tool_call_id="c1"))
    turn.start_call(calls[1])
    die(chat, turn)
    maintained = chat.maintain(wait=0)
    view = said(maintained.messages)
    assert [c.id for c in transcript.open_calls(view)] == ["c2", "c3"]
    maintained.compacted(change(view, Message(USER, "so far", kind=SUMMARY), *view[-3:]))
    maintained.close()
    turn = chat.begin(TurnRequest(None, wait=0, model="nexo/offline"))
    # What had started may have taken effect; what had not may run now.
    assert [c.id for c in transcript.open_calls(turn.messages)] == ["c3"]
    assert [m.content for m in turn.messages if m.role == TOOL] == [
        "done",
        transcript.INTERRUPTED_TEXT,
    ]
    turn.start_call(calls[2])
    turn.append(Message(TOOL, "late", tool_call_id="c3"))
    turn.append(Message(ASSISTANT, "answer 3"))
    turn.close()
    assert contents(chat.view()) == [
        "so far",
        "3",
        None,
        "done",
        transcript.INTERRUPTED_TEXT,
        "late",
        "answer 3",
    ]
    assert transcript.problem(transcript.sendable(list(chat.history()))) is None


def worked(turn: Any, text: str) -> None:
    """Run a tool in a step whose call has the id of every other step's."""
    again = ToolCall("c1", "a")
    turn.append(asking(again))
    turn.start_call(again)
    turn.append(Message(TOOL, text, tool_call_id="c1"))


@pytest.mark.parametrize("started", [False, True])
def test_ids_that_come_again_are_calls_of_their_own(store: str, started: bool) -> None:
    chat, again = chat_of(), ToolCall("c1", "a")
    turn = chat.begin(ask("1"))
    for number in range(12):
        worked(turn, f"result {number}")
        if number % 3 == 2:
            view = said(chat.view())
            summary = Message(USER, "so far", kind=SUMMARY)
            turn.compacted(change(view, summary, view[0], *view[-2:]))
    # Where its position was that of a call before the last compaction.
    for last in range(2):
        turn.append(asking(again))
        if started:
            turn.start_call(again)
            with pytest.raises(StoreFailed):
                turn.start_call(again)
        die(chat, turn)
        turn = chat.begin(TurnRequest(None, wait=0, model="nexo/offline"))
        opened = [c.id for c in transcript.open_calls(turn.messages)]
        assert opened == ([] if started else ["c1"])
        if not started:
            turn.start_call(again)
            turn.append(Message(TOOL, f"late {last}", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, "answer"))
    turn.close()
    results = [m.content for m in chat.history() if m.role == TOOL]
    ends = [transcript.INTERRUPTED_TEXT] * 2 if started else ["late 0", "late 1"]
    assert results == [*(f"result {number}" for number in range(12)), *ends]


@pytest.mark.parametrize("started", [False, True])
def test_an_open_call_takes_its_own_mark_along(store: str, started: bool) -> None:
    chat, again = chat_of(), ToolCall("c1", "a")
    turn = chat.begin(ask("1"))
    for number in range(3):
        worked(turn, f"result {number}")
    turn.append(asking(again))
    if started:
        turn.start_call(again)
    die(chat, turn)
    for keep in (3, 1):
        maintained = chat.maintain(wait=0)
        view = said(maintained.messages)
        summary = Message(USER, "so far", kind=SUMMARY)
        maintained.compacted(change(view, summary, Message(USER, "1"), *view[-keep:]))
        maintained.close()
    assert chat.undo_compaction()
    turn = chat.begin(TurnRequest(None, wait=0, model="nexo/offline"))
    assert len(transcript.open_calls(turn.messages)) == (0 if started else 1)
    turn.close()


def test_reports_are_of_the_view_from_the_compaction_on(store: str) -> None:
    chat = chat_of()
    answered(chat, "1")
    turn = chat.begin(ask("2"))
    assert turn.view_since == 0
    turn.append(Message(ASSISTANT, "answer 2"))
    turn.close()
    compacted(chat, "so far", 2)
    turn = chat.begin(ask("3"))
    places = {m.content: m.position or 0 for m in turn.messages}
    assert places["answer 2"] <= turn.view_since < places["3"]
    turn.close()
    turn = chat.maintain(wait=0)
    view = said(turn.messages)
    shown = turn.compacted(change(view, *view[-2:]))
    assert all((m.position or 0) <= turn.view_since for m in shown)
    assert (turn.append(Message(USER, "later")).position or 0) > turn.view_since
    turn.close()
    assert chat.undo_compaction()
    turn = chat.begin(ask("4"))
    places = {m.content: m.position or 0 for m in turn.messages}
    assert places["later"] <= turn.view_since < places["4"]
    turn.close()


def test_what_is_not_there_is_not_maintained(store: str) -> None:
    chat = chat_of()
    with pytest.raises(SessionNotFound):
        chat.maintain(wait=0)
    assert not chat.undo_compaction()
    assert chat.view(as_of=3) == []
    assert not chat.exists()
    answered(chat, "1")
    turn = chat.begin(ask("2"))
    with pytest.raises(SessionBusy):
        chat.maintain(wait=0)
    with pytest.raises(SessionBusy):
        chat.undo_compaction()
    turn.close()
    assert not chat.undo_compaction()


def test_marks_come_back(store: str) -> None:
    chat = chat_of()
    turn = chat.begin(ask("1"))
    turn.append(asking(ToolCall("c1", "a")))
    turn.append(Message(TOOL, "long " * 100, tool_call_id="c1", extra={"x": 1}))
    view = said(turn.messages) + said(chat.view())[1:]
    short = view[-1].replace(content="(cut)", mark="clipped")
    shown = turn.compacted(change(view, *view[:-1], short))
    assert said(shown)[-1] == short
    turn.append(Message(ASSISTANT, "answer"))
    turn.close()
    assert said(chat.view())[-2] == short
    assert "long " * 100 in contents(list(chat.history()))
