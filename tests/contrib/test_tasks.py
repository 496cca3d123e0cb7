"""Turns on Django's tasks: at once, and in real workers of a queue in the database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import transaction

try:
    from nexo_django.contrib.tasks import (
        aprompt_later,
        continue_later,
        continue_lost,
        prompt_later,
    )
except ImportError:
    pytest.skip("needs Django 6 or django-tasks", allow_module_level=True)

from nexo_django import Session
from nexo_django.exceptions import AgentNotRegistered
from tests.contrib.agents import Played, told
from tests.durability.scratch import database

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NEXO_TEST_FOLDER", str(tmp_path))


class Undone(Exception):
    pass


@pytest.mark.django_db(transaction=True)
def test_at_once_after_the_commit():
    with transaction.atomic():
        handle = prompt_later(Played, "now", "say hello")
        assert told("now", "asked") == []
    assert handle.reply().content == "hello"
    assert handle.task_id
    assert prompt_later("Played", "now", "say hello", key=handle.key).reply().turn == 1
    with pytest.raises(Undone), transaction.atomic():
        _undone()
    assert not Session.resume(Played, "undone").stored.exists()
    handle = asyncio.run(aprompt_later(Played, "async", "say async"))
    assert asyncio.run(handle.areply()).content == "async"


def _undone():
    prompt_later(Played, "undone", "say never")
    raise Undone


@pytest.mark.django_db(transaction=True)
def test_at_once_what_fails_is_tried_once_and_can_be_continued():
    handle = prompt_later(Played, "once", "flaky at last")
    assert handle.reply() is None
    assert len(told("once", "asked")) == 1
    assert continue_lost() == []
    continue_later(Played, "once")
    continue_later(Played, "once")
    assert handle.reply().content == "at last"


@pytest.mark.django_db
def test_inside_a_test_case(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        handle = prompt_later(Played, "case", "say hello")
    assert len(callbacks) == 1
    assert handle.reply().content == "hello"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"agent": "Nobody"}, AgentNotRegistered),
        ({"agent": Session}, TypeError),
        ({"instance_id": None}, TypeError),
        ({"instance_id": " "}, ValueError),
        ({"text": "  "}, ValueError),
        ({"text": None}, TypeError),
        ({"text": b"bytes"}, TypeError),
        ({"text": [{"type": "text"}]}, TypeError),
        ({"key": ""}, ValueError),
        ({"key": b"k"}, TypeError),
        ({"max_turns": 0}, ValueError),
        ({"max_turns": True}, ValueError),
        ({"model": "openai/gpt-4o"}, TypeError),
    ],
)
@pytest.mark.parametrize("queue", ["tasks", "celery"])
def test_what_is_no_prompt_is_refused_where_it_is_queued(queue, given, error):
    if queue == "celery":
        prompt = pytest.importorskip("nexo_django.contrib.celery").prompt_later
    else:
        prompt = prompt_later
    with pytest.raises(error):
        prompt(**{"agent": Played, "instance_id": "x", "text": "say x", **given})


@pytest.mark.timeout(600)
def test_in_workers_of_a_queue_in_the_database(tmp_path):
    pytest.importorskip("django_tasks_db")
    with database(os.environ.get("DATABASE_URL")) as url:
        environ = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.contrib.tasks_settings",
            "DATABASE_URL": url,
            "NEXO_TEST_LEASE_SECONDS": "5",
            "NEXO_TEST_TURN_WAIT": "0.5",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.contrib.tasks_driver"],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=590,
        )
    log = tmp_path / "worker.log"
    shown = log.read_text()[-4000:] if log.exists() else ""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{shown}"
    assert done.stdout.count(" ok\n") == 4
