"""A site and its Celery worker: what is asked in one process is seen, decided and ended in others."""

from __future__ import annotations

import os
import signal

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse

pytest.importorskip("celery")
pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from nexo_django import Session, signals
from nexo_django.contrib import celery
from nexo_django.models import ToolCall
from tests.admin.conftest import person
from tests.contrib import scenarios, workers
from tests.contrib.servers import served
from tests.contrib.site.agents import Web, gate
from tests.durability import forks
from tests.durability.redelivery import BROKERS, reachable

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not reachable(BROKERS["redis"]), reason="nothing answers on Redis's port"),
]
SITE = "tests.contrib.site.settings"


@pytest.fixture
def queue(tmp_path, monkeypatch):
    with workers.queue("redis", tmp_path, monkeypatch) as app:
        yield app


@pytest.fixture
def continuing(queue):
    celery.continue_on_decision(Web)
    yield
    signals.call_decided.disconnect(dispatch_uid=celery.__name__)


def worker(folder, **environ):
    return workers.worker(
        folder, "-P", "threads", "-c", "4", DJANGO_SETTINGS_MODULE=SITE, **environ
    )


def chat_of(user):
    name = next(iter(user.site.names.values()))
    return f"user-{get_user_model().objects.get(username=name).pk}/main"


@pytest.mark.parametrize("relay", ["", "redis://127.0.0.1:6379/5"], ids=["database", "redis"])
def test_a_page_sees_what_a_worker_writes_while_it_writes(queue, relay, tmp_path):
    environ = {"NEXO_TEST_BACKGROUND": "celery", "NEXO_TEST_RELAY": relay}
    with served("uvicorn", tmp_path, **environ) as site, worker(tmp_path, **environ):
        ann, door = site.user("ann"), site.gate()
        handle = celery.prompt_later(Web, chat_of(ann), f"drip {door}")
        forks.until(lambda: ann.history()["exists"], "the worker to store the prompt")
        with ann.watching() as told:
            seen = scenarios.until(told, "content")
            assert not gate(str(door)).exists()
            door.open()
            seen += scenarios.until(told, "done")
        assert scenarios.stored(seen)[2] == workers.replied(handle).content


def test_an_approval_outlives_the_process_that_asked_for_it(continuing, tmp_path):
    with served("uvicorn", tmp_path) as site:
        ann = site.user("ann")
        entered = ann.http.get(f"/enter/{site.names['ann']}").json()
        ann.token = entered["token"]
        with ann.prompting("save report") as told:
            scenarios.until(told, "approval_requested")
            os.kill(entered["pid"], signal.SIGKILL)
        session = Session.resume(Web, chat_of(ann))
    (call,) = session.pending()
    row = ToolCall.objects.get(call_id=call.id)
    address = reverse("admin:nexo_django_toolcall_decide", args=[row.pk])
    person("view_chat", "decide_toolcall").post(address, {"decision": "approve"})
    with worker(tmp_path):
        forks.until(lambda: session.history()[-1].content == "report ", "the worker's answer")
    assert [m.content for m in session.history() if m.role == "tool"] == ["saved report"]
    assert session.pending() == []
