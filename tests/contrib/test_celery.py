"""Turns in real Celery workers: on Redis and on RabbitMQ, with processes and with threads."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest
from django.db import transaction

pytest.importorskip("celery")

from nexo_django import Session
from nexo_django.contrib.celery import aprompt_later, continue_later, prompt_later
from nexo_django.models import Message, Turn
from tests.contrib import workers
from tests.contrib.agents import Played, open_gate, told
from tests.contrib.celery_worker import VISIBLE
from tests.contrib.workers import replied
from tests.durability.forks import until
from tests.durability.redelivery import BROKERS, reachable

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


@pytest.fixture(params=list(BROKERS))
def queue(request, tmp_path, monkeypatch):
    if not reachable(BROKERS[request.param]):
        pytest.skip(f"nothing answers at {BROKERS[request.param]}")
    with workers.queue(request.param, tmp_path, monkeypatch) as app:
        yield app


def turns(instance):
    return list(
        Turn.objects.filter(chat__instance_id=instance)
        .order_by("number")
        .values_list("status", flat=True)
    )


def answers(instance):
    found = Message.objects.filter(chat__instance_id=instance, role="assistant")
    return [text for text in found.order_by("position").values_list("content", flat=True) if text]


class Undone(Exception):
    pass


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_worker_does_with_prompts(queue, pool, tmp_path):
    with workers.worker(tmp_path, "-P", pool, "-c", "4"):
        with suppress(Undone), transaction.atomic():
            undone = prompt_later(Played, "undone", "say never")
            raise Undone
        with transaction.atomic():
            kept = prompt_later("Played", "kept", "say hello there")
            assert kept.reply() is None
        keyed = [prompt_later(Played, "keyed", "say once", key="form-1") for _ in range(3)]
        flaky = prompt_later(Played, "flaky", "flaky at last")
        refused = prompt_later(Played, "refused", "refused")
        late = prompt_later(Played, "late", "say late", countdown=0.5)
        parts = prompt_later(Played, 7, [{"type": "text", "text": "say parts"}])
        alone = asyncio.run(aprompt_later(Played, "alone", "say async"))
        assert replied(kept).content == "hello there"
        assert {replied(handle).turn for handle in keyed} == {1}
        assert replied(flaky).content == "at last"
        assert [replied(handle).content for handle in (late, parts, alone)] == [
            "late",
            "parts",
            "async",
        ]
        until(lambda: turns("refused") == ["failed"], "the refusal")
    assert undone.reply() is refused.reply() is None
    assert not Session.resume(Played, "undone").stored.exists()
    assert len(told("flaky", "asked")) == 3
    assert len(told("refused", "asked")) == 1
    assert turns("keyed") == ["done"]
    assert answers("keyed") == ["once"]
    log = (tmp_path / "worker.log").read_text()
    assert "hello there" not in log
    assert "say once" not in log


def test_a_busy_session_takes_one_prompt_after_the_other(queue, tmp_path):
    with workers.worker(tmp_path, "-P", "prefork", "-c", "2"):
        first = prompt_later(Played, "busy", "gate first")
        until(lambda: told("busy", "asked"), "the first prompt")
        second = prompt_later(Played, "busy", "say second")
        until(lambda: "SessionBusy" in (tmp_path / "worker.log").read_text(), "a busy session")
        open_gate("busy")
        assert replied(first).content == "first"
        assert replied(second).content == "second"
    assert turns("busy") == ["done", "done"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_killed_workers_task_is_one_turn(queue, pool, tmp_path):
    with workers.worker(tmp_path, "-P", pool, "-c", "1") as first:
        handle = prompt_later(Played, "killed", "effect after all")
        until(lambda: len(told("killed", "asked")) == 2, "the model to have the tool's result")
        workers.kill(first)
    open_gate("killed")
    # A worker looks for what Redis must give away when it starts, and seldom later.
    time.sleep(2 * VISIBLE)
    with workers.worker(tmp_path, "-P", pool, "-c", "1"):
        assert replied(handle).content == "after all"
    assert turns("killed") == ["done"]
    assert answers("killed") == ["after all"]
    assert len(told("killed", "effects")) == 1


def test_a_process_of_the_pool_that_is_killed_loses_no_turn(queue, tmp_path):
    with workers.worker(tmp_path, "-P", "prefork", "-c", "1"):
        handle = prompt_later(Played, "child", "effect after all")
        until(lambda: len(told("child", "asked")) == 2, "the model to have the tool's result")
        os.kill(int(told("child", "asked")[-1].split()[-1]), signal.SIGKILL)
        open_gate("child")
        assert replied(handle).content == "after all"
    assert turns("child") == ["done"]
    assert len(told("child", "effects")) == 1


def test_a_turn_that_kills_its_workers_comes_to_an_end(queue, tmp_path):
    with workers.worker(tmp_path, "-P", "prefork", "-c", "1", NEXO_TEST_LEASE_SECONDS="0.5"):
        prompt_later(Played, "poison", "poison")
        log = tmp_path / "worker.log"
        until(lambda: "as often as it may be tried" in log.read_text(), "the end", 240)
        after = prompt_later(Played, "poison", "say alive")
        assert replied(after).content == "alive"
    assert 2 <= len(told("poison", "asked")) <= 8


def test_a_warm_shutdown_ends_the_turn(queue, tmp_path):
    with workers.worker(tmp_path, "-P", "prefork", "-c", "1") as process:
        handle = prompt_later(Played, "warm", "gate to the end")
        until(lambda: told("warm", "asked"), "the prompt")
        process.send_signal(signal.SIGTERM)
        log = tmp_path / "worker.log"
        until(lambda: "shutdown" in log.read_text().lower(), "the shutdown to begin")
        open_gate("warm")
        assert process.wait(timeout=240) == 0
    assert handle.reply().content == "to the end"
    assert len(told("warm", "asked")) == 1


@pytest.mark.parametrize(("verb", "hard"), [("hang", 240), ("deaf", 2)], ids=["soft", "hard"])
def test_a_time_limit_interrupts_the_turn_and_a_retry_ends_it(queue, verb, hard, tmp_path):
    queue.conf.task_annotations = {"nexo_django.prompt": {"soft_time_limit": 1, "time_limit": hard}}
    with workers.worker(tmp_path, "-P", "prefork", "-c", "1"):
        handle = prompt_later(Played, "limited", f"{verb} at last")
        assert replied(handle).content == "at last"
    log = (tmp_path / "worker.log").read_text()
    assert ("Hard time limit" in log) == (verb == "deaf")
    assert turns("limited") == ["done"]
    counts = Counter(m.role for m in Session.resume(Played, "limited").history())
    assert (counts["user"], counts["assistant"]) == (1, 1)


def test_a_turn_is_continued_later(queue, tmp_path):
    with workers.worker(tmp_path, "-P", "threads", "-c", "2"):
        asked = prompt_later(Played, "left", "later on")
        until(lambda: turns("left") == ["failed"], "the failure")
        assert asked.reply() is None
        again = [continue_later(Played, "left") for _ in range(2)]
        assert replied(asked).content == "on"
        assert again[0].reply() is None
        log = tmp_path / "worker.log"
        until(lambda: "nothing_to_continue" in log.read_text(), "the second to find nothing")
        continue_later(Played, "nobody")
        until(lambda: "SessionNotFound" in log.read_text(), "a session that is not there")
    assert turns("left") == ["done"]
