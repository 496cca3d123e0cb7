"""The same prompt given again: one after the other, at once, and by a broker whose worker died."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.durability import journal
from tests.durability.forks import call, die_with_parent, fork, until
from tests.durability.report import Report

PATIENCE = 240.0
# How long a worker must have had a task before Redis gives it away.
VISIBLE = 1.0
BROKERS = {"redis": "redis://127.0.0.1:6379/5", "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//"}


def redelivery(report: Report, processes: int) -> None:
    """Give one key again and again, without a broker."""
    _one_turn(report, "again", [call(_keyed, "again") for _ in range(3)])
    _one_turn(report, "threads", call(_threads, "threads", processes))
    children = [fork(_keyed, "crowd-keyed") for _ in range(processes)]
    _one_turn(report, "crowd-keyed", [child.wait() for child in children])
    report.equal("another prompt, the same key", call(_conflict, "again"), "KeyConflict")


def brokers(report: Report, *names: str) -> None:
    """Let each broker deliver a task twice."""
    for name in names:
        if not reachable(BROKERS[name]):
            report.say(f"redelivery, {name}: nothing answers at {BROKERS[name]}, left out")
            continue
        try:
            _killed_worker(report, name)
            _delivered_while_running(report, name)
        except TimeoutError:
            report.say((journal.folder() / "workers.log").read_text(errors="replace")[-4000:])
            raise


def reachable(broker: str) -> bool:
    """Say whether something listens where the broker should be."""
    parts = urlsplit(broker)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5):
            return True
    except OSError:
        return False


def _one_turn(report: Report, instance: str, replies: list[str]) -> None:
    rows = call(_stored, instance)
    report.equal(f"{instance}: replies", Counter(replies), Counter({"answer to p1": len(replies)}))
    report.equal(f"{instance}: turns", rows["turns"], ["done"])
    report.equal(f"{instance}: answers", rows["answers"], 1)
    report.sound(instance)
    report.say(
        f"redelivery, {instance}: {len(replies)} replies, {len(rows['turns'])} turn, "
        f"{rows['answers']} answer, {rows['effects']} effect"
    )


def _killed_worker(report: Report, broker: str) -> None:
    """Kill the worker, its pool too, while the model is asked; another gets the task."""
    from tests.durability import workers

    instance = f"killed-{broker}"
    with _queue(broker), _worker() as first:
        call(_send, instance, "gate-tool")
        until(lambda: _asked_twice(instance), "the first worker's second model call")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        workers.gate(instance).touch()
        time.sleep(2 * VISIBLE)
        with _worker():
            replied = lambda: journal.read(instance, journal.REPLY)  # noqa: E731
            until(replied, "the task to be delivered again", PATIENCE)
            # Once more under the same key: a publisher that retried.
            call(_send, instance, "gate-tool")
            until(lambda: len(replied()) >= 2, "the second task", PATIENCE)
    tries = len(journal.read(instance, journal.ISSUED))
    report.expect(tries >= 3, f"{instance}: only {tries} deliveries")
    _one_turn(report, instance, journal.values(instance, journal.REPLY, "content"))


def _delivered_while_running(report: Report, broker: str) -> None:
    """Hold the turn until a second worker has the same task too."""
    from tests.durability import workers

    instance = f"held-{broker}"
    issued = lambda: len(journal.read(instance, journal.ISSUED))  # noqa: E731
    with _queue(broker), _worker():
        call(_send, instance, "gate-tool")
        until(lambda: _asked_twice(instance), "the second model call")
        if broker != "redis":
            # RabbitMQ gives a task away again only when its worker is gone.
            call(_send, instance, "gate-tool")
        time.sleep(2 * VISIBLE)
        with _worker():
            until(lambda: issued() >= 2, "the second delivery", PATIENCE)
            workers.gate(instance).touch()
            # On a machine too slow to keep a lease the second worker takes the turn over.
            ends = (journal.REPLY, journal.RAISED)
            until(lambda: len(journal.read(instance, *ends)) >= 2, "both to end", PATIENCE)
    _one_turn(report, instance, journal.values(instance, journal.REPLY, "content"))


def _asked_twice(instance: str) -> bool:
    """Whether the tool has run and the model has its result."""
    return 1 in journal.values(instance, journal.REQUEST, "step")


@contextmanager
def _queue(broker: str) -> Iterator[None]:
    """Use a queue of this test's own, and take it away afterwards."""
    os.environ["NEXO_TEST_BROKER"] = BROKERS[broker]
    os.environ["NEXO_TEST_QUEUE"] = f"durability-{uuid.uuid4()}"
    try:
        yield
    finally:
        call(_delete_queue)


@contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in a process group of its own, and kill it at the end."""
    # RabbitMQ knows a worker by its name: two of one name lock each other out.
    command = f"celery -A tests.durability.celery_app worker --hostname {uuid.uuid4()}@test"
    plain = "--concurrency 1 --loglevel WARNING --without-gossip --without-mingle"
    with (journal.folder() / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split(), *plain.split()],
            start_new_session=True,
            preexec_fn=die_with_parent,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _send(instance: str, shape: str) -> None:
    from tests.durability.celery_app import turn

    turn.delay(instance, "p1", shape)


def _delete_queue() -> None:
    from tests.durability.celery_app import QUEUE, app

    with app.connection() as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        if hasattr(channel, "client"):
            # Redis keeps what was not acknowledged, and more, beside the queue.
            for key in channel.client.scan_iter(f"*{QUEUE}*"):
                channel.client.delete(key)


def _keyed(instance: str) -> str:
    from tests.durability import workers

    return workers.run(instance, "p1", "pair", key="key", wait=PATIENCE)


def _threads(instance: str, count: int) -> list[str]:
    replies: list[str] = []
    threads = [
        threading.Thread(target=lambda: replies.append(_keyed(instance))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def _conflict(instance: str) -> str:
    from nexo_django.exceptions import KeyConflict
    from tests.durability import workers

    try:
        workers.run(instance, "p2", "plain", key="key")
    except KeyConflict as error:
        return type(error).__name__
    return "no error"


def _stored(instance: str) -> dict[str, Any]:
    from nexo_django.models import Message, Turn

    answers = Message.objects.filter(chat__instance_id=instance, content="answer to p1")
    turns = Turn.objects.filter(chat__instance_id=instance)
    return {
        "turns": list(turns.values_list("status", flat=True)),
        "answers": answers.count(),
        "effects": len(journal.read(instance, journal.EFFECT)),
    }
