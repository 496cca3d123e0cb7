"""A site whose turns run in workers of django-tasks-db: `python -m tests.contrib.tasks_driver`.

It raises AssertionError where a promise does not hold; its settings are in the environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import django
from django.db import transaction

from tests.durability.forks import die_with_parent, until

PATIENCE = 240.0


class Undone(Exception):
    pass


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker, and kill it at the end."""
    command = "-m django db_worker --interval 0.05 --no-startup-delay --no-reload"
    with (Path(os.environ["NEXO_TEST_FOLDER"]) / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            preexec_fn=die_with_parent,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def prompts() -> None:
    """Committed, undone, repeated, failing and deferred prompts."""
    from nexo_django.contrib.tasks import prompt_later

    with worker():
        with suppress(Undone), transaction.atomic():
            undone = prompt_later("Played", "undone", "say never")
            raise Undone
        with transaction.atomic():
            kept = prompt_later("Played", "kept", "say hello")
            inside = prompt_later("Played", "inside", "say inside", on_commit=False)
            assert kept.task_id is None
            assert inside.task_id is not None
        assert kept.task_id is not None
        keyed = [prompt_later("Played", "keyed", "say once", key="form-1") for _ in range(3)]
        flaky = prompt_later("Played", "flaky", "flaky at last")
        refused = prompt_later("Played", "refused", "refused")
        late = prompt_later("Played", "late", "say late", countdown=0.5)
        assert replied(kept) == "hello"
        assert replied(inside) == "inside"
        assert [replied(handle) for handle in keyed] == ["once"] * 3
        assert replied(flaky) == "at last"
        assert replied(late) == "late"
        until(lambda: turns("refused") == ["failed"], "the refusal", PATIENCE)
    assert undone.task_id is None
    assert turns("undone") == []
    assert turns("keyed") == ["done"]
    assert undone.reply() is refused.reply() is None


def busy() -> None:
    """Two workers, one session."""
    from nexo_django.contrib.tasks import prompt_later
    from tests.contrib.agents import open_gate, told

    with worker(), worker():
        first = prompt_later("Played", "busy", "gate first")
        until(lambda: told("busy", "asked"), "the first prompt", PATIENCE)
        second = prompt_later("Played", "busy", "say second")
        until(lambda: retried(second.task_id), "a busy session", PATIENCE)
        open_gate("busy")
        assert (replied(first), replied(second)) == ("first", "second")
    assert turns("busy") == ["done", "done"]


def killed() -> None:
    """A worker that is killed leaves a turn that another one ends."""
    from nexo_django.contrib.tasks import continue_lost, prompt_later
    from tests.contrib.agents import open_gate, told

    with worker():
        handle = prompt_later("Played", "killed", "effect after all")
        until(lambda: len(told("killed", "asked")) == 2, "the tool's result", PATIENCE)
        assert continue_lost() == []
    open_gate("killed")
    lost = until(continue_lost, "the dead worker's lease to end", PATIENCE)
    assert [(each.agent, each.instance_id) for each in lost] == [("Played", "killed")]
    with worker():
        assert replied(handle) == "after all"
    assert turns("killed") == ["done"]
    assert len(told("killed", "effects")) == 1


def shutdown() -> None:
    """A worker that is asked to stop ends its turn first."""
    from nexo_django.contrib.tasks import prompt_later
    from tests.contrib.agents import open_gate, told

    with worker() as process:
        handle = prompt_later("Played", "warm", "gate to the end")
        until(lambda: told("warm", "asked"), "the prompt", PATIENCE)
        process.send_signal(signal.SIGTERM)
        open_gate("warm")
        process.wait(timeout=PATIENCE)
    assert handle.reply().content == "to the end"


def turns(instance: str) -> list[str]:
    """Give how the session's turns stand."""
    from nexo_django.models import Turn

    rows = Turn.objects.filter(chat__instance_id=instance).order_by("number")
    return list(rows.values_list("status", flat=True))


def replied(handle: Any) -> str:
    """Wait for a reply's text."""
    return str(until(handle.reply, f"the reply of {handle}", PATIENCE).content)


def retried(task_id: str) -> bool:
    """Whether a task has put itself back for later."""
    from django_tasks_db.models import DBTaskResult

    value = DBTaskResult.objects.get(pk=task_id).return_value
    return bool(value) and value["status"] == "retrying"


if __name__ == "__main__":
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    for scenario in (prompts, busy, killed, shutdown):
        scenario()
        print(scenario.__name__, "ok", flush=True)
