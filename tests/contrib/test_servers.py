"""uvicorn and gunicorn, as processes of their own: the same scenarios pass on each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.contrib import scenarios, workers
from tests.contrib.servers import COMMANDS, ROOT, served
from tests.durability.redelivery import BROKERS, reachable
from tests.durability.scratch import vendor

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


def play(site, log, left_out=()):
    for scenario in scenarios.SCENARIOS:
        if scenario in left_out:
            continue
        try:
            scenario(site)
        except BaseException as error:
            error.add_note(f"in {scenario.__name__}")
            error.add_note(log.read_text()[-6000:])
            raise


@pytest.mark.parametrize("kind", COMMANDS)
def test_scenarios(kind, tmp_path):
    log = tmp_path / f"{kind}.log"
    with served(kind, tmp_path) as site:
        play(site, log)
    # Django warns of an iterator of the wrong kind.
    assert "Warning" not in log.read_text()


@pytest.mark.parametrize(
    ("kind", "broker"), [("uvicorn", "redis"), ("gunicorn-threads", "rabbitmq")]
)
def test_scenarios_with_celery_workers(kind, broker, tmp_path, monkeypatch):
    pytest.importorskip("celery")
    if not reachable(BROKERS[broker]):
        pytest.skip(f"nothing answers on {broker}'s port")
    environ = {"NEXO_TEST_BACKGROUND": "celery"}
    pool = ("-P", "threads", "-c", "4")
    settings = {"DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings"}
    with (
        workers.queue(broker, tmp_path, monkeypatch),
        served(kind, tmp_path, **environ) as site,
        workers.worker(tmp_path, *pool, **environ, **settings),
    ):
        play(site, tmp_path / f"{kind}.log", left_out=scenarios.HERE)


def test_a_turn_of_a_server_that_was_killed_goes_on_in_another(tmp_path):
    environ = {"NEXO_TEST_LEASE_SECONDS": "3"}
    with served("uvicorn", tmp_path, **environ) as site:
        ann, gate = site.user("ann"), site.gate()
        with ann.prompting(f"drip {gate}") as told:
            seen = scenarios.until(told, "content")
            os.kill(site.pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(told)
    with served("uvicorn", tmp_path, **environ) as site:
        cookies, token = ann.http.cookies, ann.token
        ann = site.user("ann")
        ann.http.cookies, ann.token = cookies, token
        last = [event.id for event in seen if event.id][-1]
        with ann.watching(last) as told:
            seen += scenarios.until(told, "failed")
        assert seen[-1].payload["error"]["code"] == "interrupted"
        turn = ann.history()["turn"]
        assert (turn["status"], turn["running"]) == ("interrupted", False)
        gate.open()
        assert ann.post("continue").json()["status"] == "done"
        with ann.watching(seen[-1].id) as told:
            seen += scenarios.until(told, "done")
        assert scenarios.stored(seen) == scenarios.said(ann.history())
        assert [m["role"] for m in ann.history()["messages"]] == ["user", "assistant"]


def test_many_clients_stream_at_once_and_one_that_does_not_read_holds_nothing():
    command = [sys.executable, "-m", "tests.contrib.streaming_load", "--clients", "20"]
    if url := os.environ.get("DATABASE_URL"):
        command += ["--database", url]
        if vendor(url) == "postgresql":
            # Far fewer than requests: one that waits for its turn must have given back its own.
            command += ["--pool", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(r"lost events +0\n", done.stdout)
