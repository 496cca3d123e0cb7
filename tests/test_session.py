"""Sessions as a host uses them, on the database and in memory."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.test import override_settings

from nexo_django import Session, signals, tool
from nexo_django.exceptions import (
    AgentNotRegistered,
    ConfigurationError,
    KeyConflict,
    LimitExceeded,
    NothingToContinue,
    ProviderUnavailable,
    SessionBusy,
    SessionNotFound,
)
from nexo_django.messages import Message, Usage
from nexo_django.stores.memory import MemoryStore
from tests.support import Script, asking, call, make_agent

pytestmark = pytest.mark.django_db(transaction=True)

ran: list[str] = []


@tool
def weather(city: str) -> str:
    """Current weather in a city."""
    ran.append(city)
    return f"sunny in {city}"


@tool
def broken(reason: str) -> str:
    """Always fails."""
    raise RuntimeError(reason)


@pytest.fixture(autouse=True, params=["database", "memory"])
def store(request):
    MemoryStore.reset()
    ran.clear()
    with override_settings(NEXO={"SESSION_STORE": request.param, "TURN_WAIT": 0}):
        yield request.param


def roles(session):
    return [message.role for message in session.history()]


def test_a_session_remembers():
    agent = make_agent()
    Session.resume(agent, "user-42").prompt("My name is Mac.")
    reply = Session.resume(agent, "user-42").prompt("What is my name?")
    assert "Mac" in reply.content
    assert str(reply) == reply.content
    assert reply.status == "done"
    assert reply.message.role == "assistant"


def test_instances_and_agents_are_apart():
    one, other = make_agent(name="One"), make_agent(name="Other")
    Session.resume(one, 1).prompt("My name is Mac.")
    for session in (Session.resume(one, 2), Session.resume(other, 1)):
        assert "Mac" not in session.prompt("What is my name?").content


def test_a_session_is_resumed_by_the_agents_name():
    make_agent(Script("hi"), name="ByName")
    assert Session.resume("ByName", 1).prompt("hello").content == "hi"
    with pytest.raises(AgentNotRegistered, match="ByName"):
        Session.resume("ByNam", 1)


@pytest.mark.parametrize("agent", [None, object, 5])
def test_what_is_no_agent_is_refused(agent):
    with pytest.raises(TypeError, match="subclass of Agent"):
        Session.resume(agent, 1)


def test_get_never_creates():
    agent = make_agent(Script("hi"))
    with pytest.raises(SessionNotFound, match="resume"):
        Session.get(agent, "nobody")
    Session.resume(agent, "nobody").prompt("hello")
    assert roles(Session.get(agent, "nobody"))[-1] == "assistant"


def test_a_look_makes_no_chat():
    agent = make_agent(Script())
    session = Session.resume(agent, "looked-at")
    assert (session.messages, session.history(), session.cancel()) == ([], [], False)
    assert session.usage() == Usage()
    assert session.delete() == {} or not any(session.delete().values())
    with pytest.raises(SessionNotFound):
        Session.get(agent, "looked-at")


@pytest.mark.parametrize("text", [None, b"bytes", "", "  ", 5, [], "x" * 5_000_000])
def test_a_bad_prompt_writes_nothing(text):
    session = Session.resume(make_agent(Script()), "bad")
    with pytest.raises((TypeError, ValueError)):
        session.prompt(text)
    assert not session.stored.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"max_turns": 0},
        {"wait": -1},
        {"key": ""},
        {"max_turns": "2"},
        {"wait": True},
        {"wait": float("nan")},
        {"wait": 10**400},
    ],
)
def test_a_bad_option_writes_nothing(options):
    session = Session.resume(make_agent(Script()), "bad")
    with pytest.raises(ValueError, match=r"max_turns|wait|key"):
        session.prompt("hello", **options)
    assert not session.stored.exists()


def test_parallel_tools_run_and_are_told():
    calls = call("weather", city="Oslo"), call("weather", city="Lima")
    seen = []
    session = Session.resume(make_agent(Script(asking(*calls), "done"), tools=[weather]), "tools")
    reply = session.prompt("weather?", on_event=lambda kind, payload: seen.append((kind, payload)))
    assert reply.content == "done"
    assert sorted(ran) == ["Lima", "Oslo"]
    results = [m for m in session.history() if m.role == "tool"]
    assert [(m.tool_call_id, m.content) for m in results] == [
        (calls[0].id, "sunny in Oslo"),
        (calls[1].id, "sunny in Lima"),
    ]
    kinds = [kind for kind, _ in seen]
    assert kinds.count("tool_call") == kinds.count("tool_result") == 2
    assert kinds[-1] == "done"
    assert seen[-1][1]["status"] == "done"
    assert dict(seen)["tool_call"]["name"] == "weather"


def test_a_tools_failure_is_a_result_the_model_reads():
    calls = call("broken", reason="x"), call("nosuchtool"), call("weather", town=1)
    session = Session.resume(
        make_agent(Script(asking(*calls), "sorry"), tools=[weather, broken]), 1
    )
    assert session.prompt("go").content == "sorry"
    results = [m for m in session.history() if m.role == "tool"]
    assert all(m.is_error for m in results)
    assert "weather" in results[1].content
    assert ran == []


def test_the_stream_gives_what_on_event_gets():
    seen = []
    answer = asking(call("weather", city="Rome"), text="let me look")
    first = Session.resume(make_agent(Script(answer, "sunny"), tools=[weather]), "a")
    first.prompt("go", on_event=lambda kind, payload: seen.append(kind))
    second = Session.resume(make_agent(Script(answer, "sunny"), tools=[weather]), "b")
    streamed = list(second.stream("go"))
    assert [event.type for event in streamed] == seen
    assert streamed[-1].payload["content"] == "sunny"
    assert [m.to_dict() for m in first.history()] == [m.to_dict() for m in second.history()]


def test_a_stream_refuses_a_bad_prompt_at_once():
    with pytest.raises(TypeError):
        Session.resume(make_agent(Script()), "s").stream(None)


def test_leaving_a_stream_ends_the_turn_and_the_next_prompt_works():
    agent = make_agent(model="nexo/offline")
    session = Session.resume(agent, "left")
    stream = session.stream("Tell me all about yourself, please.")
    assert next(stream).type == "content"
    stream.close()
    assert session.prompt("Still there?", wait=30).status == "done"


def test_a_stream_raises_what_the_turn_raised():
    stream = Session.resume(make_agent(Script(ProviderUnavailable("down"))), "s").stream("go")
    events = []
    with pytest.raises(ProviderUnavailable, match="down"):
        events.extend(stream)


def test_the_same_key_is_one_turn():
    script = Script("one", "two")
    session = Session.resume(make_agent(script), "keyed")
    first = session.prompt("go", key="k1")
    again = Session.resume(make_agent(script), "keyed").prompt("go", key="k1")
    assert first.content == again.content == "one"
    assert len(script.requests) == 1
    with pytest.raises(KeyConflict):
        session.prompt("other", key="k1")
    assert session.prompt("go", key="k2").content == "two"


def test_a_failed_turn_leaves_a_usable_session_and_can_go_on():
    session = Session.resume(make_agent(Script(ProviderUnavailable("down"), "back")), "failed")
    with pytest.raises(ProviderUnavailable):
        session.prompt("hello")
    assert session.continue_turn().content == "back"
    assert roles(session) == ["user", "assistant"]
    with pytest.raises(NothingToContinue):
        session.continue_turn()


def test_a_failed_turns_prompt_is_kept_before_the_next():
    script = Script(ProviderUnavailable("down"), "back")
    session = Session.resume(make_agent(script), "failed")
    with pytest.raises(ProviderUnavailable):
        session.prompt("one")
    session.prompt("two")
    assert [m.content for m in script.requests[1]] == ["one", "two"]


def test_a_key_goes_on_after_a_failure():
    script = Script(ProviderUnavailable("down"), "back")
    session = Session.resume(make_agent(script), "failed")
    with pytest.raises(ProviderUnavailable):
        session.prompt("one", key="k")
    assert session.prompt("one", key="k").content == "back"
    assert roles(session) == ["user", "assistant"]


def test_continue_without_a_chat_is_not_found():
    with pytest.raises(SessionNotFound):
        Session.resume(make_agent(Script()), "never").continue_turn()


def test_max_turns_is_a_hard_stop():
    seen = []
    steps = [asking(call("weather", city=str(n))) for n in range(9)]
    session = Session.resume(make_agent(Script(*steps), tools=[weather]), "limit")
    reply = session.prompt(
        "loop", max_turns=3, on_event=lambda kind, payload: seen.append((kind, payload))
    )
    assert reply.status == "turn_limit"
    assert ran == ["0", "1", "2"]
    assert ("turn_limit_exceeded", {"turns": 3, "max_turns": 3}) in seen
    assert Session.resume(make_agent(Script("on")), "limit").prompt("go on").content == "on"


def test_the_agents_own_limit_holds_too():
    steps = [asking(call("weather", city=str(n))) for n in range(9)]
    agent = make_agent(Script(*steps), tools=[weather], max_turns=2)
    assert Session.resume(agent, "limit").prompt("loop").status == "turn_limit"
    assert ran == ["0", "1"]


def test_cancel_stops_a_turn_between_two_steps():
    session = Session.resume(make_agent(Script()), "cancelled")

    def stop(env):
        assert session.cancel() is True
        return asking(call("weather", city="Oslo"))

    agent = make_agent(Script(stop, "never"), tools=[weather])
    reply = Session.resume(agent, "cancelled").prompt("go")
    assert reply.status == "cancelled"
    assert session.cancel() is False
    assert session.prompt("again").status == "done"


def test_the_deadline_ends_a_turn(store):
    steps = [asking(call("weather", city=str(n))) for n in range(9)]
    agent = make_agent(Script(*steps), tools=[weather], max_turns=9)
    with override_settings(NEXO={"SESSION_STORE": store, "TURN_DEADLINE": 0.000001}):
        session = Session.resume(agent, "late")
        with pytest.raises(LimitExceeded):
            session.prompt("go")


def test_a_busy_session_writes_nothing():
    entered, leave = threading.Event(), threading.Event()

    def hold(env):
        entered.set()
        assert leave.wait(60)
        return "first"

    first = Session.resume(make_agent(Script(hold)), "busy")
    thread = threading.Thread(target=first.prompt, args=("one",))
    thread.start()
    try:
        assert entered.wait(60)
        other = Session.resume(make_agent(Script("second")), "busy")
        with pytest.raises(SessionBusy) as caught:
            other.prompt("two", wait=0)
        assert 0 <= caught.value.retry_after <= 30
        assert [m.content for m in other.history()] == ["one"]
        with pytest.raises(SessionBusy):
            other.delete()
    finally:
        leave.set()
        thread.join(60)
    assert other.prompt("two", wait=60).content == "second"
    assert [m.content for m in other.history()] == ["one", "first", "two", "second"]


def test_one_system_message_that_follows_the_agent():
    for text in ("Be brief.", "Be brief.", "Be kind.", ""):
        script = Script("ok")
        session = Session.resume(make_agent(script, instructions=text), "system")
        session.prompt("hello")
        sent = [m.content for m in script.requests[0] if m.role == "system"]
        assert sent == ([text] if text else [])
        assert [m.content for m in session.history() if m.role == "system"] == sent


def test_usage_adds_up():
    session = Session.resume(make_agent(Script("a", "b")), "usage")
    assert session.prompt("one").usage == Usage(input=10, output=5)
    session.prompt("two")
    assert session.usage() == Usage(input=20, output=10)


def test_delete_leaves_nothing():
    session = Session.resume(make_agent(Script("a")), "gone")
    session.prompt("one")
    assert sum(session.delete().values()) >= 2
    assert session.history() == []
    with pytest.raises(SessionNotFound):
        Session.get(type(session.agent), "gone")
    assert session.prompt("again").status == "done"


def test_unicode_comes_back_and_what_can_not_be_stored_is_replaced():
    text = "née 🧑‍🚀 \u202e 中文 " + "a" * 100_000
    session = Session.resume(make_agent(Script("ok", "ok")), "unicode")
    session.prompt(text)
    session.prompt("nul \x00 and half a pair \ud83d here")
    said = [m.content for m in session.history() if m.role == "user"]
    assert said == [text, "nul \ufffd and half a pair \ufffd here"]


def test_signals_are_told_and_a_failing_receiver_is_not_fatal():
    heard = []

    def started(sender, **kwargs):
        heard.append(("started", kwargs["turn"]))
        raise RuntimeError("a receiver's own fault")

    def finished(sender, **kwargs):
        heard.append((kwargs["status"], kwargs["error"]))

    agent = make_agent(Script("ok", ProviderUnavailable("down")))
    signals.turn_started.connect(started, sender=agent)
    signals.turn_finished.connect(finished, sender=agent)
    session = Session.resume(agent, "signals")
    session.prompt("one")
    with pytest.raises(ProviderUnavailable):
        session.prompt("two")
    assert heard == [
        ("started", 1),
        ("done", ""),
        ("started", 2),
        ("failed", "ProviderUnavailable"),
    ]


def test_errors_are_told_before_they_are_raised():
    seen = []
    session = Session.resume(make_agent(Script(RuntimeError("holds content"))), "errors")
    with pytest.raises(RuntimeError):
        session.prompt("go", on_event=lambda kind, payload: seen.append((kind, payload)))
    assert seen == [("error", {"error": "RuntimeError", "message": "RuntimeError"})]


def test_a_session_closes_twice_and_is_a_context_manager():
    with Session.resume(make_agent(Script("hi")), "closed") as session:
        assert session.prompt("hello").content == "hi"
    session.close()


def test_the_twins_do_the_same():
    async def scenario():
        agent = make_agent(Script("one", ProviderUnavailable("down"), "two", "three"))
        async with Session.resume(agent, "async") as session:
            assert (await session.aprompt("hello")).content == "one"
            with pytest.raises(ProviderUnavailable):
                await session.aprompt("again")
            assert (await session.acontinue_turn()).content == "two"
            streamed = [event async for event in session.astream("more")]
            assert streamed[-1].payload["content"] == "three"
            assert len(await session.ahistory()) == len(await session.amessages()) == 6
            assert (await session.ausage()).input == 30
            assert await session.acancel() is False
            assert (await Session.aget(agent, "async")).instance_id == "async"
            assert sum((await session.adelete()).values()) > 0

    asyncio.run(scenario())


def test_a_blocking_verb_in_an_event_loop_names_its_twin():
    async def scenario():
        session = Session.resume(make_agent(Script()), "loop")
        with pytest.raises(SynchronousOnlyOperation, match=r"await session\.aprompt"):
            session.prompt("hello")
        with pytest.raises(SynchronousOnlyOperation, match="ahistory"):
            session.history()

    asyncio.run(scenario())


def test_leaving_an_async_stream_ends_the_turn():
    async def scenario():
        session = Session.resume(make_agent(), "left")
        stream = session.astream("Tell me all about yourself, please.")
        async for event in stream:
            assert event.type == "content"
            break
        await stream.aclose()
        assert (await session.aprompt("Still there?", wait=30)).status == "done"

    asyncio.run(scenario())


def test_a_last_message_is_the_turns_own():
    session = Session.resume(make_agent(Script("old", TimeoutError())), "own")
    session.prompt("one")
    with pytest.raises(TimeoutError):
        session.prompt("two")
    reply = Session.resume(make_agent(Script("new")), "own").continue_turn()
    assert reply.message == Message("assistant", "new", usage=Usage(input=10, output=5))


@tool
def long_story(lines: int) -> str:
    """Tell a long story."""
    return "\n".join(f"line {number}" for number in range(lines))


def test_a_long_result_is_cut_and_can_be_read_on():
    seen = []

    def read_on(env):
        output_id = next(p["output_id"] for kind, p in seen if kind == "truncated")
        return asking(call("read_output", id=output_id, offset=4_990))

    script = Script(asking(call("long_story", lines=5_000)), read_on, "read it")
    session = Session.resume(make_agent(script, tools=[long_story]), "long")
    session.prompt("tell", on_event=lambda kind, payload: seen.append((kind, payload)))
    cut, rest = (m.content for m in session.history() if m.role == "tool")
    assert "line 0\n" in cut
    assert "line 4999" not in cut
    assert "line 4990\n" in rest
    assert "line 4999" in rest


def test_compaction_keeps_the_history_and_can_be_undone():
    steps = [f"answer {number} " + "word " * 200 for number in range(12)]
    script = Script(*steps, "the summary", "after")
    session = Session.resume(make_agent(script), "compacted")
    for number in range(12):
        session.prompt(f"question {number}")
    before = session.messages
    assert session.compact(dry_run=True) is not None
    assert session.messages == before
    change = session.compact(instructions="Keep the numbers.")
    assert change.tokens_after < change.tokens_before
    after = session.messages
    assert len(after) < len(before)
    assert after[0].kind == "summary"
    history = [m for m in session.history() if m.kind == "normal"]
    assert history == before
    assert (
        session.as_of(before[-1].position) == before or session.as_of(before[-1].position) == after
    )
    assert session.undo_compaction() is True
    assert session.messages == before
    assert session.undo_compaction() is False
    assert session.prompt("go on").status == "done"


def test_compacting_what_is_not_there_is_not_found():
    with pytest.raises(SessionNotFound):
        Session.resume(make_agent(Script()), "never").compact()


def test_messages_that_a_layer_adds_its_own_way_are_stored():
    def plus(env):
        env.messages += [Message("assistant", "by +=")]

    def anew(env):
        env.messages = list(env.messages)
        env.messages.append(Message("assistant", "on another list"))

    for number, app in enumerate((plus, anew)):
        session = Session.resume(make_agent(app), number)
        assert session.prompt("hi").content == session.history()[-1].content


def test_messages_past_the_recorder_are_an_error_and_not_a_reply():
    def past(env):
        env.messages[:] = [*env.messages, Message("assistant", "never stored")]

    with pytest.raises(ConfigurationError, match=r"1 message\(s\) of the turn were not stored"):
        Session.resume(make_agent(past), "past").prompt("hi")


def test_a_listener_that_fails_hides_no_error():
    told = []

    def failing(kind, payload):
        told.append(kind)
        raise BrokenPipeError

    session = Session.resume(make_agent(Script(ProviderUnavailable("down"), "hi")), "listener")
    with pytest.raises(ProviderUnavailable):
        session.prompt("go", on_event=failing)
    assert told == ["error"]
    with pytest.raises(BrokenPipeError):
        session.prompt("go", on_event=failing)
    assert told == ["error", "content"]


def test_a_stop_iteration_is_an_error_for_every_verb():
    def stop(env):
        next(iter(()))

    session = Session.resume(make_agent(stop), "stop")
    with pytest.raises(RuntimeError, match="StopIteration"):
        session.prompt("go")
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(session.stream("go"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(session.aprompt("go"), 60))


def test_turns_within_turns_do_not_wait_for_each_others_place(store):
    helper = make_agent(Script("helped"), name="Helper")

    @tool
    async def ask() -> str:
        """Ask the helper."""
        return (await Session.resume(helper, "inner").aprompt("hi")).content

    session = Session.resume(make_agent(Script(asking(call("ask")), "done"), tools=[ask]), "outer")
    with override_settings(NEXO={"SESSION_STORE": store, "MAX_IN_FLIGHT": 1}):
        reply = asyncio.run(asyncio.wait_for(session.aprompt("go"), 120))
    assert reply.content == "done"
    assert [m.content for m in session.history() if m.role == "tool"] == ["helped"]


def test_the_store_follows_the_settings(store):
    session = Session.resume(make_agent(Script("one", "two")), "moved")
    session.prompt("here")
    other = "memory" if store == "database" else "database"
    with override_settings(NEXO={"SESSION_STORE": other}):
        assert session.history() == []
    assert len(session.history()) == 2


@pytest.mark.parametrize("wrong", [{"ENCRYPTION_KEYS": ["k"]}, {"TIMEOUT": 0}, {"NOPE": 1}])
def test_a_setting_that_can_not_be_honoured_is_refused_before_anything_is_written(store, wrong):
    session = Session.resume(make_agent(Script("one")), "refused")
    with override_settings(NEXO={"SESSION_STORE": store, **wrong}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            session.prompt("go")
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            session.stream("go")
    assert session.history() == []
