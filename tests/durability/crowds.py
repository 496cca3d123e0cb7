"""Many processes at one session, and owners that die or freeze in the middle of a turn."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Any

from tests.durability.forks import Child, call, fork, until
from tests.durability.harness import expire
from tests.durability.report import Report

PATIENCE = 900.0


def crowd(report: Report, processes: int) -> None:
    """Prompt one session from many processes at once, with patience and without."""
    began = time.monotonic()
    outcomes = _all_at_once(processes, "crowd", "tool", PATIENCE)
    seconds = time.monotonic() - began
    rows = call(_rows, "crowd")
    report.equal("replies with patience", Counter(outcomes), Counter({"done": processes}))
    report.equal("turns", rows["turns"], {"done": processes})
    report.expect(rows["contiguous"], "messages of two turns are interleaved")
    report.sound("crowd")
    report.say(
        f"crowd, waiting: {processes} processes, {outcomes.count('done')} replies, "
        f"{sum(rows['turns'].values())} turns in order, none interleaved, {seconds:.1f} s"
    )
    _impatient(report, processes)


def _impatient(report: Report, processes: int) -> None:
    outcomes = _all_at_once(processes, "crowd-busy", "gate", 0.0, open_when_refused=True)
    rows = call(_rows, "crowd-busy")
    expected = Counter({"done": 1, "SessionBusy": processes - 1})
    report.equal("replies without patience", Counter(outcomes), expected)
    report.equal("turns", rows["turns"], {"done": 1})
    report.equal("messages", rows["messages"], ["user", "assistant"])
    report.sound("crowd-busy")
    report.say(
        f"crowd, not waiting: {processes} processes, {outcomes.count('done')} reply, "
        f"{outcomes.count('SessionBusy')} SessionBusy, {len(rows['messages'])} messages stored"
    )


def creation(report: Report, processes: int, rounds: int) -> None:
    """Make the same new session from many processes at once."""
    chats = 0
    for number in range(rounds):
        instance = f"crowd-new-{number}"
        outcomes = _all_at_once(processes, instance, "plain", PATIENCE)
        report.equal(f"replies of {instance}", Counter(outcomes), Counter({"done": processes}))
        chats += call(_rows, instance)["chats"]
        report.sound(instance)
    report.equal("chats", chats, rounds)
    report.say(f"creation: {rounds} times {processes} processes, {chats} chats")


def siblings(report: Report) -> None:
    """Kill a worker in the second of two parallel tools, when the first's result is stored."""
    for afterwards in ("prompt", "continue"):
        instance = f"siblings-{afterwards}"
        child = fork(_die_in_second_tool, instance)
        child.wait()
        report.expect(child.killed, f"{instance}: the worker was not killed")
        rows = call(_after_siblings, instance, afterwards)
        report.equal(f"{instance}: reply", rows["reply"], rows["expected"])
        report.equal(f"{instance}: effects", rows["effects"], [f"{instance}/p1/0.0"])
        report.equal(f"{instance}: errors", rows["errors"], [False, True])
        report.sound(instance)
        report.say(
            f"siblings, then {afterwards}: the first result is kept, {len(rows['effects'])} effect, "
            f"reply {rows['reply']!r}"
        )


def frozen(report: Report) -> None:
    """Stop a worker past its lease, let another take the session, and wake the first."""
    from tests.durability import journal, workers

    instance = "frozen"
    child = fork(_prompt, instance, "p1", "gate", 0.0)
    until(lambda: journal.read(instance, journal.REQUEST), "the model to be asked")
    child.kill(signal.SIGSTOP)
    began = time.monotonic()
    taken = call(_prompt, instance, "p2", "plain", PATIENCE)
    seconds = time.monotonic() - began
    before = call(_rows, instance)
    workers.gate(instance).touch()
    child.kill(signal.SIGCONT)
    outcome = child.wait()
    after = call(_rows, instance)
    report.equal("the second worker", taken, "done")
    report.equal("the frozen worker", outcome, "LeaseLost")
    report.equal("rows after it woke", after, before)
    report.sound(instance)
    report.say(f"frozen: taken over after {seconds:.1f} s; the frozen worker got {outcome}")


def _all_at_once(
    count: int, instance: str, shape: str, wait: float, *, open_when_refused: bool = False
) -> list[str]:
    from tests.durability import journal, workers

    reading, writing = os.pipe()
    children: list[Child] = [
        fork(_at_the_signal, (reading, writing), instance, f"c{number}", shape, wait)
        for number in range(count)
    ]
    os.close(reading)
    os.close(writing)
    if open_when_refused:
        refused = lambda: len(journal.read(instance, journal.RAISED)) >= count - 1  # noqa: E731
        until(refused, "all others to be refused", PATIENCE)
        workers.gate(instance).touch()
    return [child.wait() for child in children]


def _at_the_signal(pipe: tuple[int, int], *arguments: Any) -> str:
    """Begin when the parent closes the pipe, as all others do."""
    os.close(pipe[1])
    os.read(pipe[0], 1)
    return _prompt(*arguments)


def _prompt(instance: str, name: str, shape: str, wait: float) -> str:
    from nexo_django.exceptions import NexoError
    from tests.durability import workers

    try:
        workers.run(instance, name, shape, wait=wait)
    except NexoError as error:
        return type(error).__name__
    return "done"


def _die_in_second_tool(instance: str) -> None:
    os.environ["NEXO_TEST_TOOL_DIES"] = "0.1"
    _prompt(instance, "p1", "siblings", 0.0)


def _after_siblings(instance: str, afterwards: str) -> dict[str, Any]:
    from nexo_django import Session
    from tests.durability import journal, workers

    expire(instance)
    if afterwards == "continue":
        reply, name = workers.go_on(instance), "p1"
    else:
        reply, name = workers.run(instance, "p2", "plain"), "p2"
    history = Session.resume(workers.Durable, instance).history()
    return {
        "reply": reply,
        "expected": workers.answer(name),
        "effects": journal.values(instance, journal.EFFECT, "mark"),
        "errors": [message.is_error for message in history if message.role == "tool"],
    }


def _rows(instance: str) -> dict[str, Any]:
    from nexo_django.models import Chat, Message, Turn

    rows = Message.objects.filter(chat__instance_id=instance).exclude(role="system")
    numbers = list(rows.order_by("position").values_list("turn__number", flat=True))
    return {
        "chats": Chat.objects.filter(instance_id=instance).count(),
        "turns": Counter(
            Turn.objects.filter(chat__instance_id=instance).values_list("status", flat=True)
        ),
        "messages": list(rows.order_by("position").values_list("role", flat=True)),
        "contiguous": numbers == sorted(numbers),
    }
