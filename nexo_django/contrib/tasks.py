"""Turns on Django's tasks (Django 6, or its backport django-tasks), whatever backend is set.

The verbs are those of `contrib.celery`. A backend that can't defer a task tries it once.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.utils import timezone

from nexo_django.agent import Agent
from nexo_django.contrib import background
from nexo_django.contrib.background import Job, Queued
from nexo_django.exceptions import ConfigurationError

try:
    from django.tasks import task
except ImportError:
    try:
        from django_tasks import task  # type: ignore[no-redef,unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "Before Django 6, tasks are a package of their own: pip install 'nexo-django[tasks]'."
        ) from error

RETRYING = "retrying"


def prompt_later(
    agent: type[Agent] | str,
    instance_id: Any,
    text: Any,
    *,
    key: Any = None,
    countdown: float | None = None,
    max_turns: int | None = None,
    on_commit: bool = True,
    using: str | None = None,
) -> Queued:
    """Queue a prompt, and give the handle to find its reply by.

    It is sent when the surrounding transaction commits, never when it rolls back; with
    `on_commit=False` at once, which a queue in the same database makes part of the
    transaction. `using` is the transaction's database. Without a `key` one is made, so a task
    that runs twice is one turn. `countdown` is in seconds; the backend must be able to defer.

    Raises what prompt() raises for what is no prompt, and AgentNotRegistered; keywords of the
    agent are not taken, since a message must not say what an agent may do.
    """
    made = str(uuid4()) if key is None else key
    job = background.prompting(agent, instance_id, text, made, max_turns)
    return _queue(prompt, job, countdown, on_commit, using)


async def aprompt_later(
    agent: type[Agent] | str, instance_id: Any, text: Any, **options: Any
) -> Queued:
    """See prompt_later()."""
    return await sync_to_async(prompt_later)(agent, instance_id, text, **options)


def continue_later(
    agent: type[Agent] | str,
    instance_id: Any,
    *,
    countdown: float | None = None,
    max_turns: int | None = None,
    on_commit: bool = True,
    using: str | None = None,
) -> Queued:
    """Queue that the session's unfinished turn goes on; nothing happens if there is none."""
    job = background.continuing(agent, instance_id, max_turns)
    return _queue(continue_turn, job, countdown, on_commit, using)


async def acontinue_later(agent: type[Agent] | str, instance_id: Any, **options: Any) -> Queued:
    """See continue_later()."""
    return await sync_to_async(continue_later)(agent, instance_id, **options)


def continue_lost(within: timedelta = timedelta(days=1)) -> list[Queued]:
    """Queue every turn whose process died, of those that began within that time.

    What runs is left alone: a process that lives has its session's lease. Of two that call
    this at once, the second one's tasks find nothing to do.
    """
    return [continue_later(*address) for address in background.lost(within)]


def continue_on_decision(*agents: type[Agent] | str) -> None:
    """Let a worker go on with a turn as soon as its last call is decided, of these agents or all.

    Call it in an AppConfig's ready(), so that it holds in every process that decides: the
    site's and the admin's.
    """
    background.continue_on_decision(continue_later, __name__, agents)


@task
def prompt(
    agent: str,
    instance_id: str,
    text: Any,
    key: str,
    max_turns: int | None = None,
    attempt: int = 0,
) -> dict[str, Any]:
    """Run one turn; the result says how it ended, not what was said."""
    return _attempt(prompt, Job(agent, instance_id, text, key, max_turns), attempt)


@task
def continue_turn(
    agent: str, instance_id: str, max_turns: int | None = None, attempt: int = 0
) -> dict[str, Any]:
    """Finish the session's interrupted or approved turn."""
    return _attempt(continue_turn, Job(agent, instance_id, max_turns=max_turns), attempt)


def _attempt(task: Any, job: Job, attempt: int) -> dict[str, Any]:
    """Run a job, or queue it again for later where that can help."""
    try:
        return background.run(job)
    except Exception as error:
        seconds = background.pause(error, attempt)
        last = attempt >= background.MAX_RETRIES or not task.get_backend().supports_defer
        if seconds is None or last:
            raise
    result = _in(task, seconds).enqueue(**job.arguments(), attempt=attempt + 1)
    return {"status": RETRYING, "key": job.key, "task": str(result.id)}


def _queue(
    task: Any, job: Job, countdown: float | None, on_commit: bool, using: str | None
) -> Queued:
    handle = Queued(job.agent, job.instance_id, job.key)
    chosen = task if countdown is None else _in(task, countdown)
    background.after_commit(partial(_send, chosen, job, handle), on_commit, using)
    return handle


def _send(task: Any, job: Job, handle: Queued) -> None:
    handle.task_id = str(task.enqueue(**job.arguments()).id)


def _in(task: Any, seconds: float) -> Any:
    return task.using(run_after=timezone.now() + timedelta(seconds=seconds))
