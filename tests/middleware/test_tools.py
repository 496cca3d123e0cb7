"""Every call of the model is answered: run, refused, or told why not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from nexo_django import Env, Event, Message, Pipeline, Session, ToolCall, tool
from nexo_django.exceptions import (
    ConfigurationError,
    LeaseLost,
    LimitExceeded,
    StoreFailed,
    ToolDenied,
    ToolError,
    TurnCancelled,
    is_abort,
)
from nexo_django.messages import ASSISTANT, TOOL, USER
from nexo_django.middleware import DefaultToolPipeline, SessionLog, ToolResultLoop, ToolRun
from nexo_django.stores.base import OpenTurn, TurnRequest
from nexo_django.stores.memory import MemoryStore
from nexo_django.tools import ToolResult
from nexo_django.transcript import problem
from tests.support import Script, asking, call, make_agent

PATIENCE = 60
ASK, DONE = Message(USER, "go"), Message(ASSISTANT, "done")


def stack(app: Any, *tools: Any, **options: Any) -> Pipeline:
    return (
        Pipeline()
        .use(SessionLog)
        .use(ToolResultLoop)
        .use(DefaultToolPipeline, tools=tools, **options)
        .run(app)
    )


def results(env: Env) -> list[Message]:
    return [m for m in env.messages if m.role == TOOL]


def told(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [event.payload for event in events if event.type == kind]


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> Iterator[OpenTurn]:
    MemoryStore.reset()
    opened = MemoryStore().chat("tools", request.node.name).begin(TurnRequest(ASK))
    yield opened
    opened.close()
    MemoryStore.reset()


class Watched:
    """A recorder that tells what is asked of it, and does it."""

    def __init__(self, turn: OpenTurn) -> None:
        self.turn = turn
        self.log: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.turn, name)

    def append(self, message: Message) -> Message:
        self.log.append((message.role, message.tool_call_id or ""))
        return self.turn.append(message)

    def start_call(self, asked: ToolCall) -> None:
        self.log.append(("start", asked.id))
        self.turn.start_call(asked)


@tool
def weather(city: str) -> str:
    """Current weather in a city."""
    return f"sunny in {city}"


@tool
def broken(reason: str) -> str:
    """Always fail."""
    raise RuntimeError(reason)


def test_the_tools_are_offered_and_the_results_shown() -> None:
    script = Script(asking(call("weather", city="Oslo")), "sunny")
    env = stack(script, weather, broken).start("go")
    assert [made.name for made in env.tools] == ["weather", "broken"]
    assert [(m.content, m.is_error) for m in results(env)] == [("sunny in Oslo", False)]
    assert env.reply is not None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="weather"):
        stack(Script(), weather, weather).start("go")


def test_tools_that_only_the_first_turn_could_read_are_refused() -> None:
    made = (each for each in [weather])
    with pytest.raises(ConfigurationError, match="give a list"):
        Pipeline().use(DefaultToolPipeline, tools=made).run(Script()).start("go")
    assert list(made) == [weather]


@pytest.mark.parametrize("limit", [0, -1, None, "2", True])
def test_max_parallel_is_a_count(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_parallel"):
        DefaultToolPipeline(Script(), max_parallel=limit)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (call("nosuchtool"), "There is no tool 'nosuchtool'. The tools are: weather, broken."),
        (call("weather", town="Oslo"), "city: Field required"),
        (call("broken", reason="it rains"), "Error: RuntimeError: it rains"),
        (ToolCall("a", "weather", raw_arguments='{"city": '), "were not a JSON object"),
    ],
    ids=["unknown", "invalid", "raises", "unparsed"],
)
def test_what_goes_wrong_is_a_result_the_model_reads(asked: ToolCall, said: str) -> None:
    env = stack(Script(asking(asked)), weather, broken).start("go")
    (result,) = results(env)
    assert result.is_error
    assert said in (result.content or "")
    assert env.has_reply


@pytest.mark.parametrize("arguments", [None, [1], "x"])
def test_arguments_of_a_foreign_log_may_be_anything(arguments: Any) -> None:
    def model(env: Env) -> None:
        env.messages.append(asking(ToolCall("a", "weather", arguments)))
        env.should_exit = True

    env = stack(model, weather).start("go")
    assert "were not a JSON object" in (results(env)[0].content or "")


def test_an_error_that_can_not_say_what_it_is() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError

    @tool
    def fail() -> str:
        raise Mute

    env = stack(Script(asking(call("fail"))), fail).start("go")
    assert results(env)[0].content == "Error: Mute: <Mute>"


class Silent:
    def __repr__(self) -> str:
        raise LookupError


def counting() -> Iterator[int]:
    yield 1
    raise LookupError("no second")


@pytest.mark.parametrize(
    ("value", "said", "is_error"),
    [
        (lambda: {Silent()}, '["<Silent>"]', False),
        (lambda: ToolResult(None, is_error="yes"), "", True),  # type: ignore[arg-type]
        (counting, "Error: LookupError: no second", True),
        (lambda: {"rows": [counting()]}, "Error: LookupError: no second", True),
        (lambda: ToolResult(counting()), "Error: LookupError: no second", True),
    ],
    ids=["silent", "truthy", "generator", "within", "wrapped"],
)
@pytest.mark.parametrize("by_hook", [None, "before_tool", "after_tool"])
def test_a_result_that_has_no_text_is_a_result_still(
    value: Callable[[], Any], said: str, is_error: bool, by_hook: str | None, turn: OpenTurn
) -> None:
    def put(env: Env, run: ToolRun) -> None:
        run.result = value()

    odd = tool(value if by_hook is None else lambda: "replaced", name="odd")
    agent = stack(Script(asking(call("odd"))), odd)
    if by_hook is not None:
        agent.on(by_hook, put)
    env = agent.start(turn=turn)
    assert [(m.content, m.is_error) for m in results(env)] == [(said, is_error)]
    assert env.has_reply


def test_a_hook_finds_what_an_iterator_gave() -> None:
    found: list[Any] = []
    agent = stack(Script(asking(call("odd"))), tool(lambda: iter("ab"), name="odd"))
    agent.on("after_tool", lambda env, run: found.append(run.result.content))
    env = agent.start("go")
    assert found == [["a", "b"]]
    assert results(env)[0].content == '["a", "b"]'


@pytest.mark.parametrize("count", [1, 2])
def test_a_cancelled_task_of_a_tool_is_an_error_of_it(count: int, turn: OpenTurn) -> None:
    @tool
    async def waits() -> str:
        task = asyncio.create_task(asyncio.sleep(PATIENCE))
        task.cancel()
        await task
        return "not reached"

    env = stack(Script(asking(*(call("waits") for _ in range(count)))), waits).start(turn=turn)
    assert [m.is_error for m in results(env)] == [True] * count
    assert "CancelledError" in (results(env)[0].content or "")
    assert env.has_reply


def test_no_tools_at_all() -> None:
    env = stack(Script(asking(call("weather")))).start("go")
    assert results(env)[0].content == "There is no tool 'weather'. The tools are: none."


def test_a_tool_error_is_its_text() -> None:
    @tool
    def refuse() -> str:
        raise ToolError("Ask me tomorrow.")

    env = stack(Script(asking(call("refuse"))), refuse).start("go")
    assert results(env) == [
        Message(TOOL, "Ask me tomorrow.", tool_call_id=results(env)[0].tool_call_id, is_error=True)
    ]


def test_results_that_are_no_text_are_json() -> None:
    @tool
    def numbers() -> list[int]:
        return [1, 2]

    @tool
    def nothing() -> None: ...

    @tool
    def failed() -> ToolResult:
        return ToolResult({"code": 1}, is_error=True)

    calls = [call("numbers"), call("nothing"), call("failed")]
    env = stack(Script(asking(*calls)), numbers, nothing, failed).start("go")
    assert [(m.content, m.is_error) for m in results(env)] == [
        ("[1, 2]", False),
        ("", False),
        ('{"code": 1}', True),
    ]


def test_parallel_calls_run_at_once_and_come_out_in_call_order(turn: OpenTurn) -> None:
    finished = {name: threading.Event() for name in "abc"}
    after = {"a": "b", "b": "c"}

    @tool
    def step(name: str) -> str:
        # c ends first, then b, then a: only if all three run at once.
        if name in after:
            assert finished[after[name]].wait(PATIENCE)
        return name

    def recorded(env: Env, event: dict[str, Any]) -> None:
        order.append(event["content"])
        finished[event["content"]].set()

    order: list[str] = []
    script = Script(asking(*(call("step", name=name) for name in "abc")))
    agent = stack(script, step).on("tool_result", recorded)
    env = agent.start(turn=turn)
    assert order == ["c", "b", "a"]
    assert [m.content for m in results(env)] == ["a", "b", "c"]
    kinds = [event.type for event in env.events if event.type.startswith("tool")]
    assert kinds == ["tool_call"] * 3 + ["tool_result"] * 3
    assert [e["arguments"]["name"] for e in told(env.events, "tool_call")] == ["a", "b", "c"]
    assert problem(script.requests[1]) is None


def test_events_come_from_the_turns_thread_and_are_json() -> None:
    threads: set[int] = set()

    def listen(kind: str, payload: dict[str, Any]) -> None:
        threads.add(threading.get_ident())
        json.dumps(payload, allow_nan=False)

    calls = [call("weather", city=str(n)) for n in range(8)]
    odd = ToolCall("x", "weather", {"city": float("nan"), "\ud800": {1, 2}})

    def model(env: Env) -> None:
        env.messages.append(asking(*calls, odd) if len(env.messages) == 1 else DONE)

    env = stack(model, weather).start("go", on_event=listen)
    assert threads == {threading.get_ident()}
    assert [e["id"] for e in told(env.events, "tool_call")] == [*(c.id for c in calls), "x"]
    assert sorted(e["id"] for e in told(env.events, "tool_result")) == sorted(
        [*(c.id for c in calls), "x"]
    )
    assert set(told(env.events, "tool_result")[0]) == {"id", "name", "content", "is_error"}


def test_threads_see_the_context_of_the_turn() -> None:
    who: ContextVar[str] = ContextVar("who")
    who.set("mac")

    @tool
    def me() -> str:
        return f"{who.get()} {threading.current_thread() is threading.main_thread()}"

    env = stack(Script(asking(call("me"), call("me"))), me).start("go")
    assert [m.content for m in results(env)] == ["mac False"] * 2


@pytest.mark.parametrize("count", [1, 2])
def test_one_call_or_no_parallel_runs_in_the_turns_thread(count: int) -> None:
    @tool
    def where() -> int:
        return threading.get_ident()

    asked = asking(*(call("where") for _ in range(count)))
    limit = 8 if count == 1 else 1
    env = stack(Script(asked), where, max_parallel=limit).start("go")
    assert [m.content for m in results(env)] == [str(threading.get_ident())] * count


@pytest.mark.django_db
def test_inside_a_transaction_tools_see_it() -> None:
    get_user_model().objects.create_user(username="mac")

    @tool
    def names() -> list[str]:
        return list(get_user_model().objects.values_list("username", flat=True))

    env = stack(Script(asking(call("names"), call("names"))), names).start("go")
    assert [m.content for m in results(env)] == ['["mac"]'] * 2


@pytest.mark.django_db(transaction=True)
def test_tools_in_threads_use_the_database_and_keep_no_connection() -> None:
    used = []

    @tool
    def add(name: str) -> int:
        used.append(connections["default"])
        return get_user_model().objects.create_user(username=name).pk is not None

    asked = asking(*(call("add", name=name) for name in ("a", "b", "c")))
    env = stack(Script(asked), add).start("go")
    assert [m.content for m in results(env)] == ["true"] * 3
    assert get_user_model().objects.count() == 3
    assert all(c is not connections["default"] and c.connection is None for c in used)


@pytest.mark.django_db(transaction=True)
def test_parallel_results_of_a_session_are_stored_in_call_order() -> None:
    both = threading.Barrier(3)

    @tool
    def together(name: str) -> str:
        both.wait(PATIENCE)
        return name

    script = Script(asking(*(call("together", name=name) for name in "abc")), "done")
    session = Session.resume(make_agent(script, "Parallel", tools=[together]), "one")
    assert session.prompt("go").content == "done"
    assert [m.content for m in session.history() if m.role == TOOL] == ["a", "b", "c"]
    assert [m.role for m in session.messages][-5:] == [ASSISTANT, TOOL, TOOL, TOOL, ASSISTANT]


def soft_limit() -> BaseException:
    parent = type("SoftTimeLimitExceeded", (Exception,), {"__module__": "billiard.exceptions"})
    child = type("Ours", (parent,), {"__module__": "some.project"})
    error = child("over")
    assert isinstance(error, Exception)
    return error


ABORTS: list[Callable[[], BaseException]] = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    soft_limit,
]


@pytest.mark.parametrize("make", ABORTS)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_signal_to_stop_passes_and_finished_results_are_kept(
    make: Callable[[], BaseException], parallel: bool, turn: OpenTurn
) -> None:
    error = make()
    begun, raised = threading.Event(), threading.Event()

    @tool
    def stop() -> str:
        assert begun.wait(PATIENCE)
        raised.set()
        raise error

    @tool
    def work() -> str:
        begun.set()
        if parallel:
            assert raised.wait(PATIENCE)
        return "worked"

    asked = asking(call("work"), call("stop"))
    seen: list[Env] = []
    agent = stack(Script(asked), work, stop, max_parallel=8 if parallel else 1)
    agent.on("turn_end", lambda env, payload: seen.append(env))
    with pytest.raises(type(error)) as caught:
        agent.start(turn=turn)
    assert caught.value is error
    assert [m.content for m in results(seen[0])] == ["worked"]


def test_calls_after_a_signal_to_stop_do_not_begin(turn: OpenTurn) -> None:
    ran = []

    @tool
    def stop() -> str:
        raise KeyboardInterrupt

    @tool
    def late() -> str:
        ran.append(1)
        return "late"

    agent = stack(Script(asking(call("stop"), call("late"))), stop, late, max_parallel=1)
    with pytest.raises(KeyboardInterrupt):
        agent.start(turn=turn)
    assert ran == []


@pytest.mark.parametrize("error", [TurnCancelled, LimitExceeded, LeaseLost, StoreFailed])
@pytest.mark.parametrize("count", [1, 2])
def test_another_sessions_end_is_not_the_end_of_this_turn(
    error: type[Exception], count: int, turn: OpenTurn
) -> None:
    @tool
    def nested() -> str:
        raise error("of another session")

    env = stack(Script(asking(*(call("nested") for _ in range(count)))), nested).start(turn=turn)
    said = f"Error: {error.__name__}: of another session"
    assert [(m.content, m.is_error) for m in results(env)] == [(said, True)] * count
    assert env.has_reply


class Ended(Watched):
    """A recorder of a turn that ends when its first tool starts."""

    ended: Exception | None = None

    def checkpoint(self, *, now: bool = False) -> None:
        if now and self.ended is not None:
            raise self.ended


@pytest.mark.parametrize("error", [TurnCancelled, LimitExceeded, LeaseLost, StoreFailed])
@pytest.mark.parametrize("count", [1, 2])
def test_the_end_of_this_turn_passes_through_a_tool(
    error: type[Exception], count: int, turn: OpenTurn
) -> None:
    watched = Ended(turn)

    @tool
    def look(env: Env) -> str:
        watched.ended = error()
        env.checkpoint(now=True)
        return "not reached"

    asked = asking(*(call("look") for _ in range(count)))
    with pytest.raises(error) as caught:
        stack(Script(asked), look).start(turn=watched)
    assert caught.value is watched.ended


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_turn_stops_in_its_tool() -> None:
    @tool
    def cancelling(env: Env) -> str:
        session.cancel()
        env.checkpoint(now=True)
        return "not reached"

    script = Script(asking(call("cancelling")))
    session = Session.resume(make_agent(script, "Cancelling", tools=[cancelling]), "one")
    assert session.prompt("go").status == "cancelled"
    assert len(script.requests) == 1


def test_celerys_own_signal_is_known() -> None:
    billiard = pytest.importorskip("billiard.exceptions")
    assert is_abort(billiard.SoftTimeLimitExceeded())


def test_a_namesake_of_a_signal_is_an_ordinary_error() -> None:
    class SoftTimeLimitExceeded(Exception): ...

    assert not is_abort(SoftTimeLimitExceeded())
    assert not is_abort(TimeoutError())


def test_a_signal_that_comes_while_tools_run_keeps_what_is_finished(turn: OpenTurn) -> None:
    told_of, go_on = threading.Event(), threading.Event()
    error = soft_limit()

    def strike(number: int, frame: object) -> None:
        raise error

    @tool
    def work() -> str:
        return "worked"

    @tool
    def poke() -> str:
        assert told_of.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGUSR1)
        go_on.wait(PATIENCE)
        return "late"

    seen: list[Env] = []
    agent = stack(Script(asking(call("poke"), call("work"))), work, poke)
    agent.on("turn_end", lambda env, payload: seen.append(env))
    agent.on("tool_result", lambda env, payload: told_of.set())
    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with pytest.raises(type(error)) as caught:
            agent.start(turn=turn)
    finally:
        signal.signal(signal.SIGUSR1, before)
        go_on.set()
    assert caught.value is error
    assert [m.content for m in results(seen[0])] == ["worked"]


def test_the_deadline_ends_the_wait_for_tools() -> None:
    go_on = threading.Event()

    @tool
    def slow() -> str:
        go_on.wait(PATIENCE)
        return "slow"

    try:
        with pytest.raises(LimitExceeded):
            stack(Script(asking(call("slow"), call("slow"))), slow).start(
                "go", deadline=time.monotonic() + 0.2
            )
    finally:
        go_on.set()


def test_a_listener_that_fails_ends_the_turn_with_the_results_kept(turn: OpenTurn) -> None:
    def fail(kind: str, payload: dict[str, Any]) -> None:
        if kind == "tool_result":
            raise ValueError("gone")

    seen: list[Env] = []
    agent = stack(Script(asking(call("weather", city="a"))), weather)
    agent.on("turn_end", lambda env, payload: seen.append(env))
    with pytest.raises(ValueError, match="gone"):
        agent.start(turn=turn, on_event=fail)
    assert [m.content for m in results(seen[0])] == ["sunny in a"]


def test_a_call_is_started_before_and_its_result_committed_after(turn: OpenTurn) -> None:
    watched = Watched(turn)

    @tool
    def look(n: int) -> str:
        watched.log.append(("ran", str(n)))
        return "x"

    one, none = call("look", n=1), call("nosuchtool")
    env = stack(Script(asking(one, none)), look, max_parallel=1).start(turn=watched)
    assert watched.log == [
        ("assistant", ""),
        ("start", one.id),
        ("ran", "1"),
        ("tool", one.id),
        ("tool", none.id),
        ("assistant", ""),
    ]
    assert len(env.messages) == 5


def test_a_result_is_committed_while_others_still_run(turn: OpenTurn) -> None:
    watched, committed = Watched(turn), threading.Event()

    @tool
    def first() -> str:
        return "first"

    @tool
    def second() -> str:
        for _ in range(PATIENCE * 100):
            if any(kind == "tool" for kind, _ in watched.log):
                committed.set()
                break
            time.sleep(0.01)
        return "second"

    env = stack(Script(asking(call("second"), call("first"))), first, second).start(turn=watched)
    assert committed.is_set()
    assert [m.content for m in results(env)] == ["second", "first"]


def test_a_call_whose_start_is_not_recorded_does_not_run(turn: OpenTurn) -> None:
    ran = []

    class Full(Watched):
        def start_call(self, asked: ToolCall) -> None:
            raise StoreFailed

    @tool
    def work() -> str:
        ran.append(1)
        return "worked"

    with pytest.raises(StoreFailed):
        stack(Script(asking(call("work"))), work).start(turn=Full(turn))
    assert ran == []


def test_a_store_that_fails_ends_the_turn(turn: OpenTurn) -> None:
    class Full(Watched):
        def append(self, message: Message) -> Message:
            if message.role == TOOL:
                raise StoreFailed
            return super().append(message)

    asked = asking(call("weather", city="a"), call("weather", city="b"))
    with pytest.raises(StoreFailed):
        stack(Script(asked), weather).start(turn=Full(turn))


# Hooks.


def hooked(asked: Message, *tools: Any, **hooks: Callable[[Env, ToolRun], Any]) -> Env:
    agent = stack(Script(asked), *tools)
    for name, hook in hooks.items():
        agent.on(name, hook)
    return agent.start("go")


def test_before_tool_may_change_the_arguments() -> None:
    def move(env: Env, run: ToolRun) -> None:
        run.arguments["city"] = "Lima"

    asked = asking(call("weather", city="Oslo"))
    env = hooked(asked, weather, before_tool=move)
    assert results(env)[0].content == "sunny in Lima"
    assert env.messages[1].calls[0].arguments == {"city": "Oslo"}


def test_a_hook_changes_no_message() -> None:
    @tool
    def put(where: dict[str, int]) -> int:
        return where["x"]

    def move(env: Env, run: ToolRun) -> None:
        run.arguments["where"]["x"] = 2

    env = hooked(asking(call("put", where={"x": 1})), put, before_tool=move)
    assert results(env)[0].content == "2"
    assert env.messages[1].calls[0].arguments == {"where": {"x": 1}}


def test_before_tool_may_answer_itself() -> None:
    def answer(env: Env, run: ToolRun) -> None:
        run.result = {"cached": True}

    env = hooked(asking(call("broken", reason="x")), broken, before_tool=answer)
    assert [(m.content, m.is_error) for m in results(env)] == [('{"cached": true}', False)]


@pytest.mark.parametrize(
    ("denied", "said"),
    [(True, 'Tool call to "weather" was denied.'), ("Not today.", "Not today.")],
)
def test_approve_tool_may_refuse(denied: bool | str, said: str) -> None:
    def refuse(env: Env, run: ToolRun) -> None:
        run.denied = denied

    env = hooked(asking(call("weather", city="Oslo")), weather, approve_tool=refuse)
    assert [(m.content, m.is_error) for m in results(env)] == [(said, True)]


def test_a_hook_may_refuse_by_raising() -> None:
    def refuse(env: Env, run: ToolRun) -> None:
        raise ToolDenied("Only on Mondays.")

    env = hooked(asking(call("weather", city="Oslo")), weather, approve_tool=refuse)
    assert [(m.content, m.is_error) for m in results(env)] == [("Only on Mondays.", True)]


def test_a_hook_that_fails_before_a_tool_ends_the_turn() -> None:
    def fail(env: Env, run: ToolRun) -> None:
        raise ValueError("hook")

    with pytest.raises(ValueError, match="hook"):
        hooked(asking(call("weather", city="Oslo")), weather, before_tool=fail)


def test_after_tool_finds_the_result_and_may_replace_it() -> None:
    found: list[Any] = []

    def shout(env: Env, run: ToolRun) -> None:
        found.append((run.name, run.call.id, run.result.is_error))
        run.result = run.result.text.upper()

    asked = asking(call("weather", city="Oslo"), call("weather", city="Lima"))
    env = hooked(asked, weather, after_tool=shout)
    assert [m.content for m in results(env)] == ["SUNNY IN OSLO", "SUNNY IN LIMA"]
    assert len(found) == 2


def test_a_hook_that_fails_after_a_tool_does_not_lose_its_result(turn: OpenTurn) -> None:
    def fail(env: Env, run: ToolRun) -> None:
        raise ValueError("hook")

    seen: list[Env] = []
    agent = stack(Script(asking(call("weather", city="Oslo"))), weather).on("after_tool", fail)
    agent.on("turn_end", lambda env, payload: seen.append(env))
    with pytest.raises(ValueError, match="hook"):
        agent.start(turn=turn)
    assert [m.content for m in results(seen[0])] == ["sunny in Oslo"]


def test_hooks_come_in_order() -> None:
    order: list[str] = []
    asked = asking(call("weather", city="Oslo"))
    hooks = {
        name: lambda env, payload, name=name: order.append(name)
        for name in ("after_tool", "approve_tool", "before_tool", "tool_call", "tool_result")
    }
    hooked(asked, weather, **hooks)
    assert order == ["tool_call", "before_tool", "approve_tool", "after_tool", "tool_result"]


# Truncation.


@tool
def flood(lines: int) -> str:
    """Say a lot."""
    return "\n".join(f"line {n}" for n in range(lines))


def test_a_long_result_is_cut_and_told_of() -> None:
    env = stack(Script(asking(call("flood", lines=5000))), flood).start("go")
    content = results(env)[0].content or ""
    assert len(content.splitlines()) <= 2000
    assert content.startswith("line 0\n")
    (cut,) = told(env.events, "truncated")
    assert (cut["total_lines"], cut["output_id"], cut["name"]) == (5000, None, "flood")
    kinds = [event.type for event in env.events if event.type != "content"]
    assert kinds == ["tool_call", "truncated", "tool_result"]


def test_the_original_is_kept_where_someone_keeps_it() -> None:
    kept: dict[str, str] = {}

    def keep(text: str, asked: ToolCall) -> str:
        kept[asked.id] = text
        return "out-7"

    asked = call("flood", lines=5000)
    env = stack(Script(asking(asked, call("flood", lines=3))), flood).start(
        "go", metadata={"keep_output": keep}
    )
    assert list(kept) == [asked.id]
    assert kept[asked.id].endswith("line 4999")
    assert "out-7" in (results(env)[0].content or "")
    assert told(env.events, "truncated")[0]["output_id"] == "out-7"


def test_what_a_tool_has_cut_itself_is_not_cut_again() -> None:
    text = "\n".join("x" for _ in range(3000))

    @tool
    def own() -> ToolResult:
        return ToolResult(text, truncated=True)

    env = stack(Script(asking(call("own"))), own).start("go")
    assert results(env)[0].content == text
    assert told(env.events, "truncated") == []


def test_the_caps_are_settings(settings: Any) -> None:
    settings.NEXO = {**settings.NEXO, "TRUNCATE_LINES": 10}
    env = stack(Script(asking(call("flood", lines=50))), flood).start("go")
    assert len((results(env)[0].content or "").splitlines()) <= 10


# Going on.


def test_only_calls_without_a_result_are_run() -> None:
    one, two = call("weather", city="a"), call("weather", city="b")
    begun = [ASK, asking(one, two), Message(TOOL, "kept", tool_call_id=one.id)]
    script = Script("done")
    env = stack(script, weather).start(begun)
    assert [m.content for m in results(env)] == ["kept", "sunny in b"]
    assert len(script.requests) == 1
    assert [e["id"] for e in told(env.events, "tool_call")] == [two.id]


def test_results_of_a_step_in_parts_are_sent_in_call_order() -> None:
    one, two = call("weather", city="a"), call("weather", city="b")
    begun = [ASK, asking(one, two), Message(TOOL, "kept", tool_call_id=two.id)]
    script = Script("done")
    stack(script, weather).start(begun)
    assert [m.content for m in script.requests[0] if m.role == TOOL] == ["sunny in a", "kept"]


def test_a_finished_conversation_runs_nothing() -> None:
    done = [ASK, asking(call("weather", city="a")), Message(ASSISTANT, "x"), ASK]
    env = stack(lambda env: env.messages.assistant("ok"), weather).start(done)
    assert told(env.events, "tool_call") == []
