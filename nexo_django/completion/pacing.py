"""The one retry loop around model calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from nexo_django import events
from nexo_django.exceptions import ProviderError
from nexo_django.pipeline import Env

T = TypeVar("T")
# A provider that asks for more than this is not waited for: the caller should know.
LONGEST_WAIT = 60.0
FIRST_WAIT = 0.5
# How soon a cancel is seen.
SLICE = 0.2


def retrying(attempt: Callable[[], T], env: Env, retries: int, began: Callable[[], bool]) -> T:
    """Give what `attempt` gives, trying again after errors that may pass.

    Never once `began()` says that something of the answer was seen, and never past the
    deadline of the env. The last error is raised as it is.
    """
    for number in range(1, retries + 2):
        try:
            return attempt()
        except ProviderError as error:
            failure = error
        env.checkpoint()
        wait = wait_for(failure, number)
        if number > retries or not failure.retryable or began() or not _worth(wait, env):
            break
        payload = {"attempt": number, "wait": round(wait, 3), "error": type(failure).__name__}
        env.emit(events.RETRY, payload)
        pause(env, wait)
    # Outside the except block: the error shall not carry another one along.
    raise failure


def wait_for(failure: ProviderError, number: int) -> float:
    """Give the seconds to wait after the attempt of that number, with some jitter."""
    asked = failure.retry_after
    least = FIRST_WAIT * 2 ** (number - 1) if asked is None else asked
    return least + random.uniform(0, min(1.0, max(least, 0.1) / 4))  # noqa: S311


def pause(env: Env, seconds: float) -> None:
    """Sleep, looking up now and then whether the turn may go on."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, SLICE))
        env.checkpoint()


def _worth(wait: float, env: Env) -> bool:
    left = LONGEST_WAIT if env.deadline is None else env.deadline - time.monotonic()
    return wait <= min(left, LONGEST_WAIT)
