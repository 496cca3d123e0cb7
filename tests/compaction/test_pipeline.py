"""Composing a compactor: the stack, a list of layers, the usual ladder."""

from __future__ import annotations

import pytest

from nexo_django.compaction import (
    Compaction,
    CompactionPipeline,
    SlidingWindow,
    Strategy,
    Summarize,
    ToolResults,
    composed,
    ladder,
)
from nexo_django.messages import USER, Message
from nexo_django.tokens import Approximate
from tests.compaction.conversations import Summariser
from tests.compaction.test_sliding_window import ONE, SYSTEM_TEXT, TASK, WHOLE

COUNTER = Approximate()


def test_a_policy_that_never_pays_says_so_with_its_terminal_app():
    stack = CompactionPipeline().use(ToolResults, keep_steps=1).use(SlidingWindow, keep_steps=2)
    assert stack.run(lambda env: env).compact(WHOLE, target=900)
    assert CompactionPipeline().run(lambda env: env).compact(WHOLE, target=900) is None
    assert CompactionPipeline().compact(WHOLE, 900) is None


def test_a_list_of_layers_is_the_same_stack():
    built = CompactionPipeline().use(ToolResults).use(SlidingWindow, keep_steps=2)
    built.run(Summarize(Summariser()))
    layers = [ToolResults(), SlidingWindow(keep_steps=2), Summarize(Summariser())]
    listed = composed(layers)
    for target in (300, 700, 1500):
        assert listed.compact(WHOLE, target) == built.compact(WHOLE, target)
    assert all(layer.app is None for layer in layers)


def test_a_list_may_hold_classes_and_end_with_any_app():
    called: list = []
    composed([ToolResults, SlidingWindow, called.append]).compact(WHOLE, 1)
    assert len(called) == 1
    assert composed([]).compact(WHOLE, 1) is None


@pytest.mark.parametrize("layers", [[object()], [print, ToolResults()], ["window"]])
def test_a_list_of_something_else_is_refused(layers):
    with pytest.raises(TypeError, match="compactors takes layers"):
        composed(layers)


def test_the_usual_ladder_asks_last_and_only_with_a_summariser():
    summariser = Summariser()
    assert ladder(summariser).attempt(WHOLE, 400).layers == (
        "tool_results",
        "sliding_window",
        "summary",
    )
    assert ladder(Summarize(summariser)).attempt(WHOLE, 400).layers[-1] == "summary"
    assert ladder().attempt(WHOLE, 400).layers == ("tool_results", "sliding_window")


def test_a_layer_of_ones_own_takes_part():
    class Shout(Strategy):
        name = "shout"

        def __init__(self, app=None, word="hey"):
            self.app, self.word = app, word

        def rewrite(self, env: Compaction):
            return [*env.conversation[:-1], Message(USER, self.word)]

    messages = [Message(USER, "x" * 4000)]
    done = CompactionPipeline().use(Shout, word="ho").attempt(messages, 10)
    assert done.messages == [Message(USER, "ho")]
    assert done.layers == ("shout",)
    assert (done.applied[0].before, done.applied[0].after) == (done.before, done.after)


def test_a_counter_of_ones_own_decides():
    class Words:
        def count(self, messages, tools=None):
            return sum(len((m.content or "").split()) for m in messages)

    assert (
        CompactionPipeline().use(SlidingWindow).compact(WHOLE, 2000, token_counter=Words()) is None
    )
    smaller = CompactionPipeline().use(SlidingWindow).compact(WHOLE, 1300, token_counter=Words())
    assert smaller[0] is SYSTEM_TEXT
    assert ONE[0] not in smaller


def test_an_unreachable_target_is_told_with_the_least_that_could_be_left():
    done = ladder().attempt(WHOLE, 10)
    assert not done.reached
    assert done.floor == COUNTER.count([SYSTEM_TEXT, TASK[0], *done.messages[-2:]])


def test_the_largest_results_are_cut_when_nothing_else_makes_it_fit():
    huge = [m.replace(content="long line " * 9000) if m.role == "tool" else m for m in TASK]
    kept = []
    done = ladder().attempt(
        huge, 3000, limit=6000, keep=lambda text, call: kept.append(text) or "o1"
    )
    assert done.after <= 6000
    assert done.layers[-1] == "clipped"
    assert 'read_output(id="o1"' in done.messages[-1].content
    assert kept[-1] == "long line " * 9000


def test_a_users_text_is_never_cut():
    done = ladder().attempt([Message(USER, "x" * 90_000)], 100, limit=200)
    assert not done.changed


def test_one_compactor_serves_many_conversations():
    stack = ladder(Summariser("same", "same"))
    first = stack.attempt(WHOLE, 700)
    assert stack.compact([Message(USER, "hi")], 1) is None
    assert stack.attempt(WHOLE, 700) == first
