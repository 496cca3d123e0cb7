"""Turns that stop for somebody's decision, in every store."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django import Session, ToolCall, signals, tool
from nexo_django.exceptions import (
    AlreadyDecided,
    CallNotPending,
    DecisionRefused,
    SessionNotFound,
)
from nexo_django.messages import TOOL
from nexo_django.stores.memory import MemoryStore
from tests.approvals.support import asker, asking, look, publish, publishing, ran

pytestmark = pytest.mark.django_db(transaction=True)


def results(session):
    return {m.tool_call_id: m.content for m in session.history() if m.role == TOOL}


def question(id_="q", **arguments):
    return ToolCall(id_, "question", {"text": "Sure?", **arguments})


def test_what_needs_no_decision_runs_and_the_rest_waits(store):
    told = []
    step = asking(*publishing("a"), ToolCall("l", "look", {"word": "x"}), question(options=["y"]))
    session = Session.resume(asker(step, "bye"), "1")
    reply = session.prompt("Go.", on_event=lambda kind, payload: told.append((kind, payload)))
    assert (reply.status, ran) == ("awaiting_approval", ["x"])
    assert [(c.id, c.kind, c.status) for c in reply.pending] == [
        ("a", "approval", "awaiting_approval"),
        ("q", "question", "awaiting_answer"),
    ]
    assert session.pending() == list(reply.pending)
    asked = {"id": "a", "name": "publish", "arguments": {"text": "a"}, "capability": "write"}
    assert ("approval_requested", asked) in told
    assert ("question", {"id": "q", "text": "Sure?", "options": ["y"]}) in told
    assert told[-1][1]["status"] == "awaiting_approval"
    again = session.continue_turn()
    assert (again.status, again.pending, ran) == (reply.status, reply.pending, ["x"])


def test_decided_calls_run_while_others_still_wait(store):
    session = Session.resume(asker(asking(*publishing("a", "b"), question()), "bye"), "1")
    session.prompt("Go.")
    session.approve("a", by="mac")
    reply = session.continue_turn()
    assert (reply.status, ran, [c.id for c in reply.pending]) == (
        "awaiting_approval",
        ["a"],
        ["b", "q"],
    )
    session.deny("b", "Not today.", by="mac")
    assert session.continue_turn().status == "awaiting_answer"
    session.answer("q", "Yes, do.")
    reply = session.continue_turn()
    assert (reply.status, reply.content, reply.pending, ran) == ("done", "bye", (), ["a"])
    assert results(session) == {
        "a": "published a",
        "b": "The call was denied; it was not run. The reason: Not today.",
        "q": "Yes, do.",
    }
    assert session.prompt("More?").status == "done"


def test_a_decision_is_made_once_and_on_a_call_that_waits(store):
    session = Session.resume(asker(asking(*publishing("a", "b"), question()), "bye"), "1")
    with pytest.raises(SessionNotFound):
        session.approve("a")
    assert session.pending() == []
    session.prompt("Go.")
    session.approve("a", by="mac")
    for second in (lambda: session.deny("a"), lambda: session.approve("a", by="eve")):
        with pytest.raises(AlreadyDecided, match="approved by 'mac' at 20") as caught:
            second()
        assert (caught.value.by, bool(caught.value.at)) == ("mac", True)
    with pytest.raises(CallNotPending, match="The calls that wait: 'b', 'q'"):
        session.deny("z")
    with pytest.raises(DecisionRefused, match="is a question"):
        session.approve("q")
    with pytest.raises(DecisionRefused, match=r"approve\(\) or deny\(\)"):
        session.answer("b", "Yes.")
    for wrong in (lambda: session.answer("q", " "), lambda: session.approve("b", by="x" * 192)):
        with pytest.raises(ValueError, match=r"empty|at most"):
            wrong()
    for wrong in (lambda: session.answer("q", 5), lambda: session.approve(5)):
        with pytest.raises(TypeError):
            wrong()
    session.continue_turn()
    with pytest.raises(AlreadyDecided):
        session.deny("a")
    assert ran == ["a"]


def test_an_id_means_the_call_of_the_step_that_waits(store):
    session = Session.resume(
        asker(asking(*publishing("a")), asking(*publishing("a")), asking(*publishing("a")), "x"),
        "1",
    )
    session.prompt("Go.")
    for _ in range(2):
        session.approve("a")
        assert session.continue_turn().status == "awaiting_approval"
    session.deny("a")
    assert session.continue_turn().status == "done"
    assert ran == ["a", "a"]
    with pytest.raises(CallNotPending):
        session.approve("a")


def test_another_prompt_goes_on_without_the_calls_that_wait(store):
    step = asking(*publishing("a", "b", "c"), question("q"), question("p"))
    session = Session.resume(asker(step, "bye"), "1")
    session.prompt("Go.")
    session.approve("a")
    session.deny("b", "No.")
    session.answer("q", "Yes.")
    assert session.prompt("Never mind.").status == "done"
    assert ran == []
    said = results(session)
    assert "was approved, but the conversation went on" in said["a"]
    assert said["b"].endswith("The reason: No.")
    assert "nobody had approved it" in said["c"]
    assert said["q"] == "Yes."
    assert "did not answer" in said["p"]
    assert session.pending() == []
    with pytest.raises(CallNotPending):
        session.approve("c")


def test_the_key_of_a_turn_that_waits_gives_what_it_waits_for(store):
    session = Session.resume(asker(asking(*publishing("a")), "bye"), "1")
    session.prompt("Go.", key="k")
    again = session.prompt("Go.", key="k")
    assert (again.status, [c.id for c in again.pending]) == ("awaiting_approval", ["a"])
    assert session.reply("k").pending == again.pending
    session.approve("a")
    done = session.prompt("Go.", key="k")
    assert (done.status, done.content, ran) == ("done", "bye", ["a"])


def test_a_decision_while_the_turn_runs_is_taken_up_by_it(store):
    session = Session.resume(asker(asking(*publishing("a", "b")), "bye"), "1")

    def decide(kind, payload):
        if kind == "approval_requested":
            session.approve(payload["id"]) if payload["id"] == "a" else session.deny("b")

    reply = session.prompt("Go.", on_event=decide)
    assert (reply.status, reply.content, ran) == ("done", "bye", ["a"])


@pytest.mark.parametrize(
    "attributes", [{"permissions": "read_only"}, {"tools": [look]}, {"permissions": None}]
)
def test_an_approval_gives_nothing_that_the_class_no_longer_allows(store, attributes):
    Session.resume(asker(asking(*publishing("a")), name="Shrinks"), "1").prompt("Go.")
    shrunk = Session.resume(asker("bye", name="Shrinks", **attributes), "1")
    shrunk.approve("a")
    reply = shrunk.continue_turn()
    assert (reply.status, ran) == ("done", [])
    assert results(shrunk)["a"].startswith(("The tool publish is not allowed", "There is no tool"))


def test_a_class_that_now_allows_it_asks_nobody(store):
    Session.resume(asker(asking(*publishing("a", "b")), name="Grows"), "1").prompt("Go.")
    grown = Session.resume(asker("bye", name="Grows", permissions="auto"), "1")
    grown.deny("b")
    assert grown.continue_turn().status == "done"
    assert ran == ["a"]


def test_what_could_not_run_is_asked_of_nobody(store):
    bad = [
        ToolCall("a", "publish", {}),
        ToolCall("b", "publish", {}, raw_arguments="[1]"),
        ToolCall("c", "question", {"text": ["x"]}),
        ToolCall("d", "publish", {"text": "x", "more": 1}),
    ]
    session = Session.resume(asker(asking(*bad), "bye"), "1")
    assert session.prompt("Go.").status == "done"
    assert (ran, len(results(session))) == ([], 4)


def test_compaction_leaves_calls_that_wait(store):
    long = "word " * 3000
    session = Session.resume(asker("one", "two", asking(*publishing("a", "b")), "bye"), "1")
    session.prompt(long)
    session.prompt(long)
    session.prompt("Go.")
    session.deny("b", "No.", by="mac")
    assert session.compact() is not None
    assert [c.id for c in session.pending()] == ["a"]
    with pytest.raises(AlreadyDecided, match="mac"):
        session.approve("b")
    session.approve("a")
    assert session.continue_turn().status == "done"
    assert ran == ["a"]
    assert "No." in results(session)["b"]


def test_signals_say_who_is_asked_and_what_was_decided(store):
    heard = []

    def asked(sender, session, name, id, **rest):
        heard.append(("asked", id, session.pending() != []))

    def decided(sender, agent_name, instance_id, call, decision, **rest):
        heard.append((decision.verb, agent_name, instance_id, call.id))
        if call.id == "a":
            # A worker may do so: the turn that asked has given the session back.
            heard.append(Session.resume(agent, "1").continue_turn(wait=0).status)

    agent = asker(asking(*publishing("a")), asking(question("q")), "bye")
    session = Session.resume(agent, "1")
    receivers = (
        (signals.approval_requested, asked),
        (signals.question_asked, lambda **rest: heard.append(rest["text"])),
        (signals.call_decided, decided),
    )
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False, dispatch_uid="test")
    try:
        session.prompt("Go.")
        session.approve("a")
    finally:
        for signal, _ in receivers:
            signal.disconnect(dispatch_uid="test")
    assert heard == [
        ("asked", "a", True),
        ("approved", "Asker", "1", "a"),
        "Sure?",
        "awaiting_answer",
    ]


@given(data=st.data())
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ten_at_once_in_any_order(store, data):
    ids = [f"c{n}" for n in range(10)]
    ran.clear()
    MemoryStore.reset()
    instance = f"h{next(_counter)}"
    session = Session.resume(asker(asking(*publishing(*ids)), "bye"), instance)
    session.prompt("Go.")
    order = data.draw(st.permutations(ids))
    approved = data.draw(st.sets(st.sampled_from(ids)))
    stops = data.draw(st.sets(st.integers(0, 8)))
    for number, call_id in enumerate(order):
        session.approve(call_id) if call_id in approved else session.deny(call_id, call_id)
        if number in stops:
            reply = session.continue_turn()
            assert reply.status == "awaiting_approval"
            assert {c.id for c in reply.pending} == set(order[number + 1 :])
    assert session.continue_turn().status == "done"
    assert sorted(ran) == sorted(approved)
    said = results(session)
    assert list(said) == ids
    for call_id in ids:
        assert said[call_id].startswith("published" if call_id in approved else "The call was")


def test_two_that_decide_at_once(store):
    rounds = 10
    session = Session.resume(asker(asking(*publishing(*map(str, range(rounds)))), "bye"), "1")
    session.prompt("Go.")
    outcomes = {}

    def decide(who, verb, barrier):
        for number in range(rounds):
            barrier.wait(30)
            try:
                getattr(session, verb)(str(number), by=who)
                outcomes[who, number] = True
            except AlreadyDecided as error:
                outcomes[who, number] = error.by
        _close()

    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=decide, args=(who, verb, barrier))
        for who, verb in (("ann", "approve"), ("bob", "deny"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(rounds):
        won = [who for who in ("ann", "bob") if outcomes[who, number] is True]
        assert len(won) == 1
        (lost,) = {"ann", "bob"} - set(won)
        assert outcomes[lost, number] == won[0]
    assert session.continue_turn().status == "done"
    assert sorted(map(int, ran)) == [n for n in range(rounds) if outcomes["ann", n] is True]


def test_continuing_while_others_decide(store):
    ids = [str(number) for number in range(8)]
    session = Session.resume(asker(asking(*publishing(*ids)), "bye"), "1")
    session.prompt("Go.")
    failed = []

    def decide():
        try:
            for call_id in ids:
                session.approve(call_id)
        except BaseException as error:
            failed.append(error)
        _close()

    thread = threading.Thread(target=decide)
    thread.start()
    statuses = []
    while thread.is_alive() and "done" not in statuses:
        statuses.append(session.continue_turn().status)
    thread.join(60)
    assert failed == []
    assert set(statuses) <= {"awaiting_approval", "done"}
    if "done" not in statuses:
        assert session.continue_turn().status == "done"
    assert sorted(ran) == ids


def test_a_listener_that_fails_loses_no_call_that_waits(store):
    session = Session.resume(asker(asking(*publishing("a", "b")), "bye"), "1")

    def fail(kind, payload):
        if kind == "approval_requested":
            raise RuntimeError("the page is gone")

    with pytest.raises(RuntimeError):
        session.prompt("Go.", on_event=fail)
    assert [c.id for c in session.pending()] == ["a", "b"]
    session.approve("a")
    assert [c.id for c in session.continue_turn().pending] == ["b"]
    session.deny("b")
    assert session.continue_turn().status == "done"
    assert ran == ["a"]


def test_a_decision_is_part_of_the_transaction_around_it():
    from django.db import transaction

    ran.clear()
    heard = []
    session = Session.resume(asker(asking(*publishing("a")), "bye"), "1")
    session.prompt("Go.")
    signals.call_decided.connect(
        lambda **told: heard.append(told["decision"].by), weak=False, dispatch_uid="test"
    )
    try:
        with transaction.atomic():
            session.approve("a", by="nobody")
            transaction.set_rollback(True)
        assert [c.id for c in session.pending()] == ["a"]
        with transaction.atomic():
            session.approve("a", by="mac")
            assert heard == []
        assert heard == ["mac"]
    finally:
        signals.call_decided.disconnect(dispatch_uid="test")
    assert session.continue_turn().status == "done"
    assert ran == ["a"]


def test_mode_ask_decides_now(store):
    asked = []

    def on_ask(capability, detail):
        asked.append((capability, detail))
        if detail["arguments"]["text"] == "c":
            raise RuntimeError("no terminal")
        return detail["arguments"]["text"] == "a"

    from nexo_django.permissions import Permissions

    session = Session.resume(
        asker(
            asking(*publishing("a", "b", "c")),
            "bye",
            permissions=Permissions("ask", on_ask=on_ask),
        ),
        "1",
    )
    assert session.prompt("Go.").status == "done"
    assert ran == ["a"]
    assert asked[0] == ("write", {"tool": "publish", "arguments": {"text": "a"}})
    assert "not allowed" in results(session)["b"]
    assert "not allowed" in results(session)["c"]


def test_the_async_twins(store):
    import asyncio

    session = Session.resume(asker(asking(*publishing("a", "b"), question()), "bye"), "1")

    async def decide():
        reply = await session.aprompt("Go.")
        assert await session.apending() == list(reply.pending)
        await session.aapprove("a")
        await session.adeny("b")
        await session.aanswer("q", "Yes.")
        return await session.acontinue_turn()

    assert asyncio.run(decide()).status == "done"
    assert ran == ["a"]


@tool(capability="write")
def own(text: str) -> str:
    """Write in the host's own way."""
    return text


def test_read_only_offers_no_tool_that_it_can_not_allow(store):
    agent = asker(asking(*publishing("a")), "bye", permissions="read_only", tools=[publish, own])
    session = Session.resume(agent, "1")
    assert agent().offered() == []
    assert session.prompt("Go.").status == "done"
    assert results(session)["a"].startswith("The tool publish is not allowed")


def _close():
    from django.db import connections

    connections.close_all()


_counter = iter(range(10**9))
