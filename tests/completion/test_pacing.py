"""The retry loop by itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nexo_django.completion import pacing
from nexo_django.exceptions import BadRequest, ProviderUnavailable, RateLimited, TurnCancelled
from tests.completion.support import Cancelling, told


class Attempts:
    """Fails as told, then succeeds."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"


def soon(kind: Any = RateLimited) -> Any:
    return kind(retry_after=0.0)


def test_it_tries_until_it_succeeds(asked: Any) -> None:
    env, attempts = asked(), Attempts(soon(), soon(ProviderUnavailable))
    assert pacing.retrying(attempts, env, 2, lambda: False) == "done"
    assert attempts.count == 3
    assert [p["attempt"] for p in told(env, "retry")] == [1, 2]


@pytest.mark.parametrize(
    ("failures", "retries", "began", "count"),
    [
        ([soon(), soon(), soon()], 1, False, 2),
        ([soon(), soon()], 0, False, 1),
        ([BadRequest()], 5, False, 1),
        ([RateLimited(retryable=False)], 5, False, 1),
        ([soon()], 5, True, 1),
        ([RateLimited(retry_after=3600.0)], 5, False, 1),
    ],
)
def test_it_gives_up(
    asked: Any, failures: list[Exception], retries: int, began: bool, count: int
) -> None:
    attempts = Attempts(*failures)
    with pytest.raises((RateLimited, BadRequest)) as caught:
        pacing.retrying(attempts, asked(), retries, lambda: began)
    assert attempts.count == count
    assert caught.value.__context__ is None


def test_the_turn_may_end_between_attempts(asked: Any) -> None:
    env, attempts = asked(), Attempts(soon())
    env.messages.recorder = Cancelling()
    env.messages.recorder.stop = True
    with pytest.raises(TurnCancelled):
        pacing.retrying(attempts, env, 3, lambda: False)
    assert attempts.count == 1


def test_waits_grow_and_are_never_shorter_than_asked() -> None:
    unasked = [pacing.wait_for(ProviderUnavailable(), n) for n in range(1, 6)]
    assert unasked == sorted(unasked)
    assert all(pacing.wait_for(RateLimited(retry_after=s), 1) >= s for s in (0, 0.1, 5.0, 59.0))
    assert pacing.wait_for(RateLimited(retry_after=0.0), 9) < 1


def test_a_wait_lasts_its_time(asked: Any) -> None:
    began = time.monotonic()
    pacing.pause(asked(), 0.3)
    assert time.monotonic() - began >= 0.3
