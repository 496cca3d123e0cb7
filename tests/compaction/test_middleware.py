"""When a turn compacts, by which ruler, and what it does when that is not enough."""

from __future__ import annotations

import json
from random import Random

import pytest

from nexo_django import Pipeline, tool
from nexo_django.compaction import Change, CompactionPipeline, SlidingWindow, Summarize, ToolResults
from nexo_django.compaction.sliding_window import NOTE
from nexo_django.exceptions import (
    ConfigurationError,
    ContextOverflow,
    ContextTooLarge,
    LeaseLost,
    TurnCancelled,
)
from nexo_django.messages import (
    ASSISTANT,
    SUMMARY,
    SYSTEM,
    TOOL,
    USER,
    Message,
    MessageLog,
    ToolCall,
    Usage,
)
from nexo_django.middleware import (
    DefaultToolPipeline,
    MaxIterations,
    SystemPrompt,
    ToolResultLoop,
)
from nexo_django.middleware.compaction import DefaultCompactionPipeline, _window
from nexo_django.pipeline import Env
from nexo_django.tokens import Approximate, Tiktoken
from nexo_django.transcript import problem, sendable
from tests.compaction.conversations import Summariser, conversation
from tests.compaction.test_sliding_window import ONE, TASK, TWO, WHOLE

COUNTER = Approximate()
SIZE = COUNTER.count(WHOLE)


class Model:
    """A terminal app that answers, with a result to look at or a limit to overflow."""

    def __init__(self, *answers: Message, takes: int | None = None, **usage) -> None:
        self.answers, self.takes, self.usage = list(answers), takes, usage
        self.requests: list[list[Message]] = []

    def __call__(self, env: Env) -> None:
        request = sendable(env.messages)
        assert problem(request) is None
        self.requests.append(request)
        if self.takes is not None and COUNTER.count(request) > self.takes:
            raise ContextOverflow("the request is larger than the model's context")
        answer = self.answers.pop(0) if self.answers else Message(ASSISTANT, "done")
        env.messages.append(answer)


def run(model, messages, on_event=None, **options):
    """Run one turn and give its env and the payloads of `compacted`."""
    told: list[dict] = []
    pipeline = Pipeline().use(DefaultCompactionPipeline, **options).run(model)
    pipeline.on("compacted", lambda env, payload: told.append(payload))
    return pipeline.start(list(messages), on_event=on_event), told


def test_it_compacts_only_once_the_window_fills():
    model = Model()
    env, told = run(model, WHOLE, window=SIZE * 2)
    assert told == []
    assert model.requests == [WHOLE]
    env, told = run(model, WHOLE, window=int(SIZE / 0.7))
    assert len(told) == 1
    assert env.messages[-1].content == "done"
    assert COUNTER.count(model.requests[-1]) <= int(SIZE / 0.7) * 0.4


def test_it_says_what_the_turn_gave_up():
    heard: list[tuple] = []
    _, told = run(Model(), WHOLE, window=SIZE, on_event=lambda *event: heard.append(event))
    payload = told[0]
    assert payload["context"] == payload["before"] == SIZE
    assert payload["target"] == int(SIZE * 0.4)
    assert payload["after"] <= payload["target"]
    assert payload["reached"] is True
    assert payload["layers"] == ["tool_results", "sliding_window"]
    assert payload["trigger"] == "threshold"
    assert payload["removed"] == [*ONE, *TWO]
    assert isinstance(payload["change"], Change)
    event = next(event for event in heard if event[0] == "compacted")
    assert json.loads(json.dumps(event[1])) == event[1]
    assert "removed" not in event[1]


def test_a_hook_can_archive_what_went_with_the_new_view_in_place():
    archive: list = []

    def keep(env, payload):
        assert env.messages[:2] == [WHOLE[0], NOTE]
        archive.extend(payload["removed"])

    pipeline = Pipeline().use(DefaultCompactionPipeline, window=SIZE).run(Model())
    pipeline.on("compacted", keep).start(list(WHOLE))
    assert archive == [*ONE, *TWO]


def test_the_default_ladder_pays_last():
    summariser = Summariser()
    env, told = run(Model(), WHOLE, window=int(SIZE / 0.7), summariser=summariser)
    assert told[0]["layers"] == ["tool_results", "sliding_window", "summary"]
    assert sum(m.kind == SUMMARY for m in env.messages) == 1
    assert len(summariser.asked) == 1


@pytest.mark.parametrize("how", ["compactor", "compactors", "summariser"])
def test_there_are_three_ways_to_say_how(how):
    summariser = Summariser()
    paid = Summarize(summariser, keep_steps=2)
    stack = CompactionPipeline().use(ToolResults, keep_steps=1).use(SlidingWindow, keep_steps=2)
    options = {
        "compactor": stack.run(paid),
        "compactors": [ToolResults(), SlidingWindow(keep_steps=2), paid],
        "summariser": summariser,
    }
    _, told = run(Model(), WHOLE, window=SIZE, **{how: options[how]})
    assert told[0]["layers"][-1] == "summary"


def test_a_compactor_of_ones_own_needs_one_method():
    class Half:
        def compact(self, messages, target, events, token_counter):
            return [m for m in messages if m not in ONE] if token_counter.count(messages) else None

    env, told = run(Model(), WHOLE, window=SIZE, compactor=Half())
    assert told[0]["layers"] == ["Half"]
    assert told[0]["removed"] == ONE
    assert env.compactor.__class__ is Half


def test_a_compactor_that_fails_has_declined():
    class Broken:
        def compact(self, messages, target, events, token_counter):
            messages.clear()
            raise RuntimeError("with content")

    heard: list = []
    env, told = run(
        Model(), WHOLE, window=SIZE, compactor=Broken(), on_event=lambda *e: heard.append(e)
    )
    assert ("error", {"error": "RuntimeError", "message": "The compactor failed."}) in heard
    assert list(env.messages) == [*WHOLE, Message(ASSISTANT, "done")]
    assert told == []


def test_a_compactor_that_parts_a_call_from_its_result_has_declined():
    class Sloppy:
        def compact(self, messages, target, events, token_counter):
            return messages[-1:]

    heard: list = []
    env, told = run(
        Model(), WHOLE, window=SIZE, compactor=Sloppy(), on_event=lambda *e: heard.append(e)
    )
    assert [payload["error"] for name, payload in heard if name == "error"] == ["BadRequest"]
    assert env.messages[:-1] == WHOLE
    assert told == []


@pytest.mark.parametrize("abort", [TurnCancelled, LeaseLost])
def test_a_signal_to_stop_passes_through(abort):
    class Stopped:
        def compact(self, messages, target, events, token_counter):
            raise abort

    with pytest.raises(abort):
        run(Model(), WHOLE, window=SIZE, compactor=Stopped())


def test_a_summariser_that_fails_leaves_the_turn_to_go_on():
    heard: list = []
    summariser = Summariser(ValueError("secret"))
    env, _ = run(
        Model(), WHOLE, window=SIZE, summariser=summariser, on_event=lambda *e: heard.append(e)
    )
    assert [payload["error"] for name, payload in heard if name == "error"] == ["ValueError"]
    assert "secret" not in str(heard)
    assert [m.position for m in env.messages[:-1]] == [m.position for m in WHOLE]
    assert len(env.messages) == len(WHOLE) + 1


def test_schemas_and_the_system_text_are_part_of_the_request():
    @tool
    def search(query: str) -> str:
        """Search the shelves."""
        return query

    schemas = COUNTER.count([], tools=[search])
    assert schemas > 20
    model = Model()
    pipeline = Pipeline().use(DefaultCompactionPipeline, window=int((SIZE + schemas) / 0.7))
    told: list = []
    pipeline.use(DefaultToolPipeline, tools=[search]).run(model)
    pipeline.on("compacted", lambda env, payload: told.append(payload)).start(list(WHOLE))
    assert told[0]["context"] == SIZE + schemas
    assert told[0]["target"] == int(int((SIZE + schemas) / 0.7) * 0.4) - schemas
    _, told = run(Model(), WHOLE, window=int(SIZE / 0.69))
    assert told == []
    _, told = run(Model(), WHOLE, window=int(SIZE / 0.69), tools=[search])
    assert len(told) == 1


def test_the_providers_report_goes_before_the_count():
    answered = Message(ASSISTANT, "so", usage=Usage(input=SIZE * 2, output=0))
    messages = [*WHOLE[:-1], WHOLE[-1], answered, Message(USER, "next")]
    _, told = run(Model(), messages, window=SIZE * 3)
    assert told == []
    _, told = run(Model(), messages, window=int(SIZE * 2 / 0.7))
    assert told[0]["context"] >= SIZE * 2
    assert told[0]["before"] == pytest.approx(told[0]["context"], rel=0.02)


def test_usage_from_the_env_counts_when_the_message_has_none():
    class Quiet(Model):
        def __call__(self, env):
            super().__call__(env)
            env.metadata["last_llm_usage"] = Usage(input=5000, output=0)

    step = Message(ASSISTANT, tool_calls=[ToolCall("a", "look")])
    model = Quiet(step)
    told: list = []
    pipeline = Pipeline().use(ToolResultLoop).use(DefaultCompactionPipeline, window=6000)
    pipeline.use(DefaultToolPipeline).run(model)
    pipeline.on("compacted", lambda env, payload: told.append(payload)).start([*WHOLE])
    assert [payload["context"] >= 5000 for payload in told] == [True]


def test_a_report_from_before_the_compaction_is_not_believed_again():
    answered = Message(ASSISTANT, "so", usage=Usage(input=50_000, output=0))
    step = Message(ASSISTANT, tool_calls=[ToolCall("a", "look")])
    model, told = Model(step, step.replace(tool_calls=[ToolCall("b", "look")])), []
    pipeline = Pipeline().use(ToolResultLoop).use(DefaultCompactionPipeline, window=60_000)
    pipeline.use(DefaultToolPipeline).run(model)
    pipeline.on("compacted", lambda env, payload: told.append(payload))
    pipeline.start([*WHOLE, answered, Message(USER, "next")])
    assert len(told) == 1
    assert len(model.requests) == 3


def test_a_view_that_was_compacted_in_an_earlier_turn_is_counted():
    answered = Message(ASSISTANT, "so", usage=Usage(input=50_000, output=0))
    summary = Message(USER, "before", kind=SUMMARY, mark="summary")
    _, told = run(Model(), [summary, *ONE, answered, Message(USER, "next")], window=60_000)
    assert told == []


def test_it_runs_before_every_call_of_a_turn():
    calls = [Message(ASSISTANT, tool_calls=[ToolCall(f"c{n}", "fetch")]) for n in range(6)]
    model, told = Model(*calls), []

    @tool
    def fetch() -> str:
        """Fetch a page."""
        return ("page " * 80 + "\n") * 10

    pipeline = Pipeline().use(SystemPrompt, "be terse").use(ToolResultLoop).use(MaxIterations, 20)
    pipeline.use(DefaultCompactionPipeline, window=4000).use(DefaultToolPipeline, tools=[fetch])
    pipeline.run(model).on("compacted", lambda env, payload: told.append(payload))
    env = pipeline.start("collect")
    assert len(model.requests) == 7
    assert len(told) >= 2
    assert all(COUNTER.count(request) <= 0.7 * 4000 for request in model.requests)
    assert env.messages[0].role == SYSTEM


def test_between_compactions_a_request_begins_with_the_one_before():
    calls = [Message(ASSISTANT, tool_calls=[ToolCall(f"c{n}", "fetch")]) for n in range(12)]
    model, marks = Model(*calls), []

    @tool
    def fetch() -> str:
        """Fetch a page."""
        return "page " * 300

    pipeline = Pipeline().use(ToolResultLoop).use(DefaultCompactionPipeline, window=4000)
    pipeline.use(DefaultToolPipeline, tools=[fetch]).run(model)
    pipeline.on("compacted", lambda env, payload: marks.append(len(model.requests)))
    pipeline.start("collect")
    assert 1 <= len(marks) < 6
    for number, (before, after) in enumerate(
        zip(model.requests, model.requests[1:], strict=False), 1
    ):
        if number not in marks:
            one, two = ([json.dumps(m.to_dict()) for m in r] for r in (before, after))
            assert two[: len(one)] == one


def test_a_target_out_of_reach_is_told_once_and_costs_nothing_again():
    calls = [Message(ASSISTANT, tool_calls=[ToolCall(f"c{n}", "look")]) for n in range(5)]
    model, told, summariser = Model(*calls), [], Summariser()
    pipeline = Pipeline().use(ToolResultLoop)
    pipeline.use(DefaultCompactionPipeline, window=3000, summariser=summariser)
    pipeline.use(DefaultToolPipeline).run(model)
    pipeline.on("compacted", lambda env, payload: told.append(payload))
    pipeline.start([*ONE, *ONE, Message(USER, "x" * 9000)])
    assert len(told) == 1
    assert told[0]["reached"] is False
    assert told[0]["floor"] > told[0]["target"]
    assert len(summariser.asked) == 1


def test_an_overflow_compacts_once_and_asks_again():
    model = Model(takes=900)
    env, told = run(model, WHOLE, window=100_000)
    assert len(model.requests) == 2
    assert [payload["trigger"] for payload in told] == ["overflow"]
    assert env.reply.content == "done"


def test_an_overflow_that_stays_is_an_error_that_names_the_culprit():
    model = Model(takes=10)
    with pytest.raises(ContextTooLarge) as caught:
        run(model, WHOLE, window=100_000)
    assert len(model.requests) == 2
    assert caught.value.floor > 10
    assert caught.value.budget < SIZE
    assert "(assistant)" in caught.value.culprit or "(tool)" in caught.value.culprit


def test_an_overflow_with_nothing_to_give_up_is_not_tried_again():
    model = Model(takes=10)
    with pytest.raises(ContextTooLarge, match=r"message 0 \(user\)") as caught:
        run(model, [Message(USER, "secret " * 900)], window=100_000)
    assert len(model.requests) == 1
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ContextOverflow)


def test_a_huge_result_is_cut_to_make_the_last_step_fit():
    step = [
        Message(USER, "go"),
        Message(ASSISTANT, tool_calls=[ToolCall("a", "fetch")]),
        Message(TOOL, "line of a page\n" * 4000, tool_call_id="a"),
    ]
    model = Model(takes=9000)
    env, told = run(model, step, window=10_000)
    assert told[0]["layers"] == ["clipped"]
    assert env.reply.content == "done"


def test_a_recorder_stores_the_change_and_gives_the_view():
    class Store:
        changes: list[Change] = []

        def compacted(self, change):
            self.changes.append(change)
            return [m.replace(position=n) for n, m in enumerate(change.view)]

        def append(self, message):
            return message

        def checkpoint(self, *, now=False):
            """Nothing stops the turn."""

    log = MessageLog(WHOLE)
    log.recorder = Store()
    env = Pipeline().use(DefaultCompactionPipeline, window=SIZE).run(Model()).start(log)
    assert [m.position for m in env.messages[:3]] == [0, 1, 2]
    assert log.recorder.changes[0].removed == (*ONE, *TWO)


def test_a_store_that_fails_leaves_the_view_as_it_was():
    class Store:
        def compacted(self, change):
            raise LeaseLost

    log = MessageLog(WHOLE)
    log.recorder = Store()
    with pytest.raises(LeaseLost):
        Pipeline().use(DefaultCompactionPipeline, window=SIZE).run(Model()).start(log)
    assert list(log) == WHOLE


def test_a_manual_compaction_does_not_wait_for_the_window_to_fill():
    summariser = Summariser()
    layer = DefaultCompactionPipeline(Model(), window=200_000, summariser=summariser)
    env = Env(messages=MessageLog(WHOLE))
    change = layer.compact(env, instructions="Keep prices.")
    assert change.trigger == "manual"
    assert tuple(env.messages) == change.view
    assert change.tokens_after <= 0.4 * SIZE
    assert "Keep prices." in summariser.read
    assert layer.compact(Env(messages=MessageLog([Message(USER, "hi")]))) is None


def test_a_dry_run_changes_nothing_and_costs_nothing():
    summariser, kept = Summariser(), []
    layer = DefaultCompactionPipeline(Model(), window=SIZE, summariser=summariser)
    env = Env(messages=MessageLog(WHOLE), metadata={"keep_output": kept.append})
    change = layer.compact(env, dry_run=True)
    assert list(env.messages) == WHOLE
    assert change.layers == ("tool_results", "sliding_window", "summary")
    assert list(change.removed) == [*ONE, *TWO]
    assert summariser.asked == kept == []


@pytest.mark.parametrize(
    "options",
    [
        {"compact_at": 0.4, "compact_to": 0.4},
        {"compact_at": 1.5},
        {"compact_to": 0},
        {"compact_at": 0.3},
        {"window": 0},
        {"window": True},
        {"compactor": object()},
        {"compactors": ["window"]},
        {"keep_steps": 0},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_when_the_stack_is_built(options):
    with pytest.raises(ConfigurationError):
        DefaultCompactionPipeline(Model(), **options)


def test_the_settings_give_the_shares(settings):
    settings.NEXO = {"COMPACT_AT": 0.9, "COMPACT_TO": 0.2}
    layer = DefaultCompactionPipeline(Model())
    assert (layer.compact_at, layer.compact_to) == (0.9, 0.2)


class Declared:
    context_window = 10_000


@pytest.mark.parametrize(
    ("env", "window"),
    [
        (Env(), 128_000 - 4096),
        (Env(model="openai/gpt-4o"), 128_000 - 16_384),
        (Env(model="openai/gpt-4o", agent=Declared()), 10_000 - 2500),
        (Env(model="nobody/knows-me"), 128_000 - 4096),
    ],
    ids=("unknown", "catalogue", "agent", "unlisted"),
)
def test_the_window_is_the_models_less_room_for_the_answer(env, window):
    assert _window(env) == window


def test_a_counter_of_ones_own_is_used_for_everything():
    counter = Tiktoken()
    env, told = run(Model(), WHOLE, window=counter.count(WHOLE), token_counter=counter)
    assert env.token_counter is counter
    assert told[0]["before"] == counter.count(WHOLE)


def test_a_smaller_model_compacts_and_a_larger_one_does_not():
    long = conversation(Random(3), 30)
    size = COUNTER.count(long)
    assert 20_000 < size < 0.7 * (200_000 - 20_000)
    for model, compacts in (("openai/gpt-4", True), ("openai/gpt-4.1", False)):
        told: list = []
        pipeline = Pipeline().use(DefaultCompactionPipeline).run(Model())
        pipeline.on("compacted", lambda env, payload, told=told: told.append(payload))
        pipeline.start(list(long), model=model)
        assert bool(told) is compacts


def test_the_task_survives_a_whole_turn_of_compactions():
    assert TASK[0] in run(Model(), WHOLE, window=900)[0].messages
