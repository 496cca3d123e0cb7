"""What the task queues share: what travels in a message, and when a turn is tried again.

A message holds an address, a text and a key, as JSON. What an agent may do comes from its class
in the worker, so whoever can write into the queue gains no more than a prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Any

from django.db import router, transaction
from django.db.models import F
from django.utils import timezone

from nexo_django import conf, connections, prompts, registry, signals
from nexo_django.agent import Agent
from nexo_django.exceptions import (
    LeaseLost,
    NothingToContinue,
    ProviderError,
    SessionBusy,
    StoreFailed,
    brief,
    is_time_limit,
)
from nexo_django.reply import Reply
from nexo_django.session import Session
from nexo_django.stores.base import RUNNING
from nexo_django.stores.choice import default_store
from nexo_django.turn import Run

# With the pauses below, a turn that is tried so often has had half an hour.
MAX_RETRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
# What a provider or a lease may ask for; brokers deliver again what is held for an hour.
LONGEST_WAIT = 900.0
# For agents without a deadline; Redis delivers again after an hour.
SOFT_SECONDS = 1800
# A turn's own deadline comes first, and what was stopped has the time to say so.
GRACE_SECONDS = 60

NOTHING = "nothing_to_continue"


@dataclass(frozen=True)
class Job:
    """What a message holds: the address, and the prompt with its key, or to go on."""

    agent: str
    instance_id: str
    text: Any = None
    key: str | None = None
    max_turns: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Give the task's keyword arguments, as JSON values; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def shown(self) -> dict[str, Any]:
        """Give the arguments for logs and monitors, which must not keep what users write."""
        return {**self.arguments(), **({} if self.text is None else {"text": "..."})}


@dataclass
class Queued:
    """What was queued: the session's address, the prompt's key, and the queue's task.

    `task_id` is the queue's own; where the queue makes it, it is None until the surrounding
    transaction committed.
    """

    agent: str
    instance_id: str
    key: str | None = None
    task_id: str | None = None

    def reply(self) -> Reply | None:
        """Give the reply as it is stored, None until the turn ended or waits for somebody."""
        return None if self.key is None else self._session().reply(self.key)

    async def areply(self) -> Reply | None:
        """See reply()."""
        return None if self.key is None else await self._session().areply(self.key)

    def _session(self) -> Session:
        return Session.resume(self.agent, self.instance_id)


def prompting(
    agent: type[Agent] | str, instance_id: Any, text: Any, key: Any, max_turns: int | None
) -> Job:
    """Check a prompt as prompt() would, here where the caller still sees the error."""
    going = continuing(agent, instance_id, max_turns)
    said = _sayable(text, registry.get(going.agent).max_prompt_bytes)
    return replace(going, text=said, key=prompts.key(key))


def continuing(agent: type[Agent] | str, instance_id: Any, max_turns: int | None) -> Job:
    """Check an address, and that a worker will find the agent by its name."""
    cls = registry.get(agent if isinstance(agent, str) else _name(agent))
    if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
        raise ValueError(f"max_turns is {brief(max_turns)}; it must be at least 1.")
    return Job(cls.name, prompts.instance_id(instance_id), max_turns=max_turns)


def after_commit(send: Callable[[], None], on_commit: bool, using: str | None) -> None:
    """Send when the surrounding transaction committed, or now."""
    if on_commit:
        transaction.on_commit(send, using=using)
    else:
        send()


def run(job: Job) -> dict[str, Any]:
    """Run a turn, and give how it ended; what was said stays with the session."""
    with Session.resume(job.agent, job.instance_id) as session:
        if job.text is not None:
            turn = session._run(job.text, job.max_turns, job.key, None)
        else:
            turn = session._continuation(job.max_turns, None)
        try:
            reply = _relayed(turn)
        except NothingToContinue:
            if job.text is not None:
                raise
            # Another was faster, or the message came twice.
            return {"status": NOTHING}
    return {"status": reply.status, "turn": reply.turn, "key": job.key}


def continue_on_decision(
    continue_later: Callable[[str, str], object], name: str, agents: Iterable[type[Agent] | str]
) -> None:
    """Queue that a turn goes on when its last call was decided; a later call replaces an earlier."""
    names = {agent if isinstance(agent, str) else _name(agent) for agent in agents}

    def decided(sender: Any, agent_name: str, instance_id: str, **details: Any) -> None:
        if names and agent_name not in names:
            return
        # Who decides last sees every decision; where two are last, one finds nothing to do.
        if not default_store().chat(agent_name, instance_id).pending():
            continue_later(agent_name, instance_id)

    signals.call_decided.disconnect(dispatch_uid=name)
    signals.call_decided.connect(decided, dispatch_uid=name, weak=False)


def lost(within: timedelta) -> list[tuple[str, str]]:
    """Give the addresses whose turn began within that time, and whose process is gone."""
    # A Celery app is made before the models are there.
    from nexo_django.models import tables

    found = tables()
    alias = router.db_for_write(found.chat)
    running = found.turn._base_manager.using(alias).filter(
        status=RUNNING, number=F("chat__open_turn"), started__gte=timezone.now() - within
    )
    free = found.chat.objects.using(alias).free().filter(pk__in=running.values("chat"))
    with connections.mapped("read"):
        return list(free.order_by("pk").values_list("agent_name", "instance_id"))


def pause(error: Exception, attempt: int) -> float | None:
    """Give the seconds until the next attempt, or None where another can't do better."""
    if is_time_limit(error):
        return 0.0
    if isinstance(error, ProviderError) and not error.retryable:
        return None
    if not isinstance(error, SessionBusy | ProviderError | StoreFailed | LeaseLost):
        return None
    asked = min(getattr(error, "retry_after", None) or 0.0, LONGEST_WAIT)
    longest = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
    # Those that failed together must not come back together.
    return float(asked + random.uniform(longest / 2, longest))  # noqa: S311


def limits() -> tuple[int, int]:
    """Give the soft and the hard time limit of a task, in seconds."""
    deadline = conf.get("TURN_DEADLINE")
    soft = SOFT_SECONDS if deadline is None else conf.get("TURN_WAIT") + deadline + GRACE_SECONDS
    return ceil(soft), ceil(soft) + GRACE_SECONDS


def _relayed(turn: Run) -> Reply:
    """Run a turn, told to those who watch it where the settings say that workers have turns."""
    if conf.get("BACKGROUND") is None and conf.get("RELAY") is None:
        return turn()
    # It needs the models, and a Celery app is made before they are there.
    from nexo_django.contrib.relay import Relay

    relay = Relay()
    try:
        return replace(turn, begun=relay.begin)(relay)
    finally:
        relay.close()


def _name(agent: Any) -> str:
    if isinstance(agent, type) and issubclass(agent, Agent) and agent is not Agent:
        return agent.name
    raise TypeError(
        f"A turn is queued with a subclass of Agent or its registered name, not {brief(agent)}."
    )


def _sayable(text: Any, max_bytes: int) -> Any:
    """Give a prompt as a message carries it: clean text, or a list of parts."""
    message = prompts.prompt(text, max_bytes)
    if isinstance(text, str):
        return message.content
    lead = [{"type": "text", "text": message.content}] if message.content else []
    parts = [*lead, *(message.parts or ())]
    return json.loads(json.dumps(parts))
