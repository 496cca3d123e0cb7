"""Real Celery workers on real brokers, on the database of the running tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.contrib.celery_worker import make
from tests.durability.forks import die_with_parent, until
from tests.durability.redelivery import BROKERS
from tests.durability.scratch import vendor, with_name

PATIENCE = 240.0


def database_url() -> str:
    """Give the URL of the database that this test runs on."""
    from django.conf import settings

    name = settings.DATABASES["default"]["NAME"]
    url = os.environ.get("DATABASE_URL", "")
    return f"sqlite:///{name}" if vendor(url) == "sqlite" else with_name(url, name)


@contextmanager
def queue(broker: str, folder: Path, monkeypatch: Any) -> Iterator[Any]:
    """Give an app of this process with a queue of its own, which is taken away at the end."""
    from celery import _state

    name = f"contrib-{uuid.uuid4()}"
    monkeypatch.setenv("NEXO_TEST_BROKER", BROKERS[broker])
    monkeypatch.setenv("NEXO_TEST_QUEUE", name)
    monkeypatch.setenv("NEXO_TEST_FOLDER", str(folder))
    before = _state.default_app, _state._tls.current_app
    app = make(BROKERS[broker], name)
    app.set_default()
    try:
        yield app
    finally:
        _delete(app, name)
        app.close()
        _state.set_default_app(before[0])
        _state._set_current_app(before[1])


def _delete(app: Any, name: str) -> None:
    with app.connection() as connection:
        channel = connection.channel()
        channel.queue_delete(name)
        if hasattr(channel, "client"):
            for key in channel.client.scan_iter(f"*{name}*"):
                channel.client.delete(key)


@contextmanager
def worker(folder: Path, *options: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in a process group of its own, and kill it at the end."""
    # RabbitMQ knows a worker by its name: two of one name lock each other out.
    command = f"celery -A tests.contrib.celery_worker worker --hostname {uuid.uuid4()}@test"
    plain = "--loglevel INFO --without-gossip --without-mingle"
    given = {
        "DJANGO_SETTINGS_MODULE": "tests.durability.settings",
        "DATABASE_URL": database_url(),
        "NEXO_TEST_LEASE_SECONDS": "5",
        "NEXO_TEST_TURN_WAIT": "0.5",
    }
    log = folder / "worker.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split(), *plain.split(), *options],
            env={**os.environ, **given, **environ},
            start_new_session=True,
            preexec_fn=die_with_parent,
            stdout=file,
            stderr=file,
        )
    try:
        yield process
    except BaseException:
        print(log.read_text(errors="replace")[-6000:])
        raise
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with its pool, as a machine that fails does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def replied(handle: Any) -> Any:
    """Wait for the reply of what was queued."""
    return until(handle.reply, f"the reply of {handle}", PATIENCE)
