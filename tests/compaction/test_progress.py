"""What is told while a compaction runs, and that what it used for nothing is not forgotten."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.conf import settings as django_settings

from nexo_django import Pipeline, Session, tokens
from nexo_django.exceptions import TurnCancelled
from nexo_django.messages import ASSISTANT, SUMMARY, USER, Message, MessageLog, Usage
from nexo_django.middleware.compaction import DefaultCompactionPipeline
from nexo_django.pipeline import Env
from nexo_django.tokens import Approximate, Tiktoken
from tests.compaction.conversations import Summariser
from tests.compaction.test_sliding_window import WHOLE
from tests.support import make_agent

HOOKS = ("compact_start", "compact_layer", "compact_end", "compact_failure", "compacted")
SIZE = Approximate().count(WHOLE)
SPENT = Usage(input=900, output=20, cost=Decimal("0.25"))
USELESS = Message(ASSISTANT, "", usage=SPENT)
STORES = [
    "memory",
    "jsonl",
    pytest.param("database", marks=pytest.mark.django_db(transaction=True)),
]


def ends(env: Env) -> None:
    env.messages.append(Message(ASSISTANT, "done"))


def hooked(summariser: Any, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    told: list[tuple[str, dict[str, Any]]] = []
    options = {"window": int(SIZE / 0.7), **options}
    pipeline = Pipeline().use(DefaultCompactionPipeline, summariser=summariser, **options).run(ends)
    for name in HOOKS:
        pipeline.on(name, lambda env, payload, name=name: told.append((name, payload)))
    pipeline.start(list(WHOLE))
    return told


def test_hooks_hear_of_the_beginning_each_layer_and_the_end():
    told = hooked(Summariser())
    assert [name for name, _ in told] == [
        "compact_start",
        *["compact_layer"] * 3,
        "compact_end",
        "compacted",
    ]
    layers = [payload["layer"] for name, payload in told if name == "compact_layer"]
    assert layers == ["tool_results", "sliding_window", "summary"]
    start, end = told[0][1], told[-2][1]
    assert (start["trigger"], start["context"], start["window"]) == (
        "threshold",
        SIZE,
        int(SIZE / 0.7),
    )
    assert end["layers"] == layers
    assert end["after"] < end["before"] == SIZE
    assert all(json.loads(json.dumps(p)) == p for name, p in told if name != "compacted")


def test_hooks_hear_of_a_summary_that_failed_and_of_what_was_done_in_its_place():
    told = dict(hooked(Summariser(""), window=SIZE // 3))
    assert told["compact_failure"] == {"trigger": "threshold", "error": "SummaryFailed"}
    assert "sliding_window" in told["compact_end"]["layers"]


def test_hooks_hear_of_a_compactor_that_failed():
    class Broken:
        def compact(self, messages: Any, **options: Any) -> None:
            raise RuntimeError("with content")

    told = hooked(None, compactor=Broken())
    assert [name for name, _ in told] == ["compact_start", "compact_failure"]
    assert told[1][1] == {"trigger": "threshold", "error": "RuntimeError"}


def test_a_dry_run_tells_no_hook():
    told: list[str] = []
    hooks = {name: [lambda env, payload: told.append("x")] for name in HOOKS}
    layer = DefaultCompactionPipeline(ends, window=SIZE, summariser=Summariser())
    env = Env(messages=MessageLog(WHOLE), hooks=hooks)
    assert layer.compact(env, dry_run=True) is not None
    assert told == []


class Cancelled:
    """A recorder of a turn that is cancelled after so many looks."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.spent: list[Any] = []

    def append(self, message: Message) -> Message:
        return message

    def checkpoint(self, *, now: bool = False) -> None:
        self.after -= 1
        if self.after < 0:
            raise TurnCancelled("Turn 1 was cancelled.")

    def compaction_failed(self, spent: Any) -> None:
        self.spent.append(spent)


def cancelled(after: int, summariser: Any) -> Cancelled:
    recorder = Cancelled(after)
    env = Env(messages=MessageLog(WHOLE), stream=True)
    env.messages.recorder = recorder
    layer = DefaultCompactionPipeline(ends, window=int(SIZE / 0.7), summariser=summariser)
    with pytest.raises(TurnCancelled):
        layer(env)
    assert list(env.messages) == WHOLE
    return recorder


def test_a_cancel_is_seen_before_a_summary_is_asked_for():
    summariser = Summariser()
    assert cancelled(0, summariser).spent == []
    assert summariser.asked == []


def test_a_cancel_is_seen_while_a_summary_is_written_and_its_cost_kept():
    def slow(env: Env) -> None:
        assert env.stream
        try:
            for _ in range(50):
                env.checkpoint()
        except TurnCancelled:
            env.messages.append(Message(ASSISTANT, "Half a", status="interrupted", usage=SPENT))
            raise

    (spent,) = cancelled(10, slow).spent
    assert (spent.error, spent.trigger, spent.usage.total) == ("TurnCancelled", "threshold", 920)


@pytest.fixture(params=STORES)
def store(request: Any, tmp_path: Any, settings: Any) -> str:
    chosen = f"jsonl:{tmp_path / 'logs'}" if request.param == "jsonl" else request.param
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": chosen}
    return str(request.param)


def agent(summariser: Any, **attributes: Any) -> Any:
    """Make an agent whose summaries come from elsewhere than its answers."""

    def answers(env: Env) -> None:
        env.messages.append(Message(ASSISTANT, "Yes.", usage=Usage(input=1, output=1, cost=None)))

    made = make_agent(answers, context_window=100_000, **attributes)
    made.completion = lambda self: summariser
    return made


def filled(made: Any, turns: int = 8) -> Session:
    session = Session.resume(made, uuid.uuid4().hex)
    for number in range(turns):
        session.prompt(f"{number}: " + "a long story of many words " * 20)
    return session


def test_an_attempt_that_came_to_nothing_is_paid_for(store: str) -> None:
    session = filled(agent(Summariser(*[USELESS] * 9)))
    before, view = session.usage(), session.messages
    session.agent.context_window = 1500
    reply = session.prompt("And now?")
    assert reply.usage.input >= SPENT.input
    assert [m for m in session.messages if m.kind == SUMMARY] == []
    assert session.messages[: len(view)] == view
    if store == "database":
        _stored(session, before)


def _stored(session: Session, before: Usage) -> None:
    from nexo_django.models import Chat, Compaction

    (row,) = Compaction.objects.filter(chat__instance_id=session.instance_id)
    assert (row.status, row.error, row.trigger) == ("failed", "SummaryFailed", "threshold")
    assert row.usage["input"] == SPENT.input
    assert row.usage["cost"] == "0.25"
    chat = Chat.objects.get(instance_id=session.instance_id)
    assert chat.current_compaction is None
    assert session.usage().input == before.input + SPENT.input + 1
    turn = chat.turns.order_by("-number")[0]
    assert turn.input_tokens == SPENT.input + 1


@pytest.mark.django_db(transaction=True)
def test_a_failed_attempt_is_in_nobodys_way(settings: Any) -> None:
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}
    session = filled(agent(Summariser(USELESS)))
    before, place = session.messages, session.messages[-1].position
    assert session.compact() is None
    assert session.stored.view(as_of=place) == session.messages == before
    change = session.compact()
    assert change is not None
    assert any(m.kind == SUMMARY for m in session.messages)
    assert session.undo_compaction() is True
    assert session.messages == before
    assert [m.content for m in session.history() if m.role == USER and m.kind != SUMMARY]


def test_the_exact_counter_is_asked_only_when_something_is_due():
    def encoded(window: int, model: str) -> int:
        tokens._remembered.clear()
        pipeline = Pipeline().use(DefaultCompactionPipeline, window=window).run(ends)
        pipeline.start(list(WHOLE), model=model)
        return len(tokens._remembered)

    assert encoded(SIZE * 2, "openai/gpt-4o") == 0
    assert encoded(SIZE, "anthropic/claude-sonnet-4-5") == 0
    assert encoded(SIZE, "openai/gpt-4o") > 0


def test_what_only_the_estimate_takes_for_too_much_stays():
    chinese = "我们今天去公园玩天气很好" * 100
    messages = [Message(USER, chinese), Message(ASSISTANT, chinese), Message(USER, "再说一遍")]
    cheap, real = Approximate().count(messages), Tiktoken().count(messages)
    window = int((cheap + real) / 2 / 0.7)
    assert real < 0.7 * window < cheap

    def kept(model: str) -> int:
        pipeline = Pipeline().use(DefaultCompactionPipeline, window=window).run(ends)
        return len(pipeline.start(list(messages), model=model).messages)

    assert kept("openai/gpt-4o") == 4
    assert kept("another/model") < 4
