"""Turns in Celery: queued after the commit, one turn however often a task is delivered.

Import this module where your Celery app is made, so that workers know its tasks.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from celery import Task, shared_task, uuid
from celery.exceptions import Reject
from celery.signals import worker_init

from nexo_django import conf, registry
from nexo_django.agent import Agent
from nexo_django.completion import offline, warm
from nexo_django.contrib import background
from nexo_django.contrib.background import Job, Queued
from nexo_django.exceptions import ConfigurationError, NexoError


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
    `on_commit=False` at once. `using` is the transaction's database. Without a `key` one is
    made, so a message that is delivered twice is one turn. `countdown` is in seconds.

    Raises what prompt() raises for what is no prompt, and AgentNotRegistered; keywords of the
    agent are not taken, since a message must not say what an agent may do.
    """
    task_id = uuid()
    job = background.prompting(agent, instance_id, text, task_id if key is None else key, max_turns)
    return _queue(prompt, job, task_id, countdown, on_commit, using)


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
    return _queue(continue_turn, job, uuid(), countdown, on_commit, using)


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


class TurnTask(Task):  # type: ignore[misc]
    """What both tasks are: delivered again until they ended, and bounded in number and time.

    The limits follow NEXO["TURN_DEADLINE"]; `task_annotations` changes them, and
    `max_retries`.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    # A turn that was killed at its hard limit is taken up by the next delivery.
    acks_on_timeout = False
    max_retries = background.MAX_RETRIES

    @property
    def soft_time_limit(self) -> int:
        """The seconds after which SoftTimeLimitExceeded is raised in the turn."""
        return background.limits()[0]

    @property
    def time_limit(self) -> int:
        """The seconds after which the process is killed."""
        return background.limits()[1]

    def attempt(self, job: Job) -> dict[str, Any]:
        """Run a job, or put it back for later where that can help."""
        if (self.request.delivery_info or {}).get("redelivered"):
            # Only a message of our own counts: a turn that kills its worker must come to an end.
            raise self._again(job, _lost(job), 0)
        try:
            return background.run(job)
        except Exception as error:
            seconds = background.pause(error, self.request.retries)
            if seconds is None:
                raise
            raise self._again(job, error, seconds) from error

    def _again(self, job: Job, error: Exception, seconds: float) -> Any:
        """Send the message again, or raise the error when that was done often enough."""
        try:
            return self.retry(exc=error, countdown=seconds, kwargsrepr=repr(job.shown()))
        except Reject as refused:
            # Celery drops a message that it can't send again; the broker still has this one.
            raise Reject(refused.reason, requeue=True) from error


@shared_task(bind=True, base=TurnTask, name="nexo_django.prompt")
def prompt(
    self: TurnTask,
    agent: str,
    instance_id: str,
    text: Any,
    key: str,
    max_turns: int | None = None,
) -> dict[str, Any]:
    """Run one turn; the result says how it ended, not what was said."""
    return self.attempt(Job(agent, instance_id, text, key, max_turns))


@shared_task(bind=True, base=TurnTask, name="nexo_django.continue_turn")
def continue_turn(
    self: TurnTask, agent: str, instance_id: str, max_turns: int | None = None
) -> dict[str, Any]:
    """Finish the session's interrupted or approved turn."""
    return self.attempt(Job(agent, instance_id, max_turns=max_turns))


@worker_init.connect
def import_litellm(**kwargs: Any) -> None:
    """Import litellm before the pool forks: seconds of processor once, memory that is shared."""
    default = conf.get("DEFAULT_MODEL")
    models = {agent.model or default for agent in registry.agents().values()}
    if models - {offline.MODEL}:
        warm()


def _queue(
    task: Any, job: Job, task_id: str, countdown: float | None, on_commit: bool, using: str | None
) -> Queued:
    _refuse_no_app(task.app)
    send = partial(
        task.apply_async,
        kwargs=job.arguments(),
        task_id=task_id,
        countdown=countdown,
        kwargsrepr=repr(job.shown()),
    )
    background.after_commit(send, on_commit, using)
    return Queued(job.agent, job.instance_id, job.key, task_id)


def _refuse_no_app(app: Any) -> None:
    """Refuse Celery's own default app, which would look for a broker that nobody named."""
    if app.main == "default" and not app.conf.broker_url:
        raise ConfigurationError(
            "This process has no Celery app: import yours in your project's __init__.py, and call "
            "its set_default() if threads are to find it."
        )


def _lost(job: Job) -> NexoError:
    return NexoError(
        f"The workers that ran this turn of {job.agent!r} were lost, as often as it may be tried. "
        f"continue_later() tries again."
    )
