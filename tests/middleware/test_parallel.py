"""Work side by side: every end of it."""

from __future__ import annotations

import math
import threading

import pytest
from django.db import connections, transaction

from nexo_django.exceptions import LimitExceeded
from nexo_django.middleware.parallel import in_transaction, together

PATIENCE = 60


def no_limit() -> float:
    return math.inf


def test_all_run_at_once_and_are_told_of_here() -> None:
    barrier = threading.Barrier(4)
    told: list[tuple[int, int]] = []
    together(
        lambda item: barrier.wait(PATIENCE),
        range(4),
        limit=4,
        tell=lambda item: told.append((item, threading.get_ident())),
        remaining=no_limit,
    )
    assert sorted(item for item, _ in told) == [0, 1, 2, 3]
    assert {thread for _, thread in told} == {threading.get_ident()}


def test_no_more_than_the_limit_run() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(item: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    together(work, range(50), limit=2, tell=lambda item: None, remaining=no_limit)
    assert most <= 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_error_waits_for_those_that_run(error: type[BaseException]) -> None:
    both, failed, told = threading.Barrier(2), threading.Event(), []

    def work(item: int) -> None:
        both.wait(PATIENCE)
        if item == 0:
            failed.set()
            raise error
        assert failed.wait(PATIENCE)

    with pytest.raises(error):
        together(work, range(2), limit=2, tell=told.append, remaining=no_limit)
    assert told == [1]


def test_after_an_error_no_other_begins() -> None:
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        raise RuntimeError(item)

    with pytest.raises(RuntimeError, match="0"):
        together(work, range(200), limit=1, tell=begun.append, remaining=no_limit)
    assert begun == [0]


def test_a_limit_does_not_wait() -> None:
    go_on = threading.Event()

    def over() -> float:
        raise LimitExceeded

    try:
        with pytest.raises(LimitExceeded):
            together(
                lambda item: go_on.wait(PATIENCE),
                range(2),
                limit=2,
                tell=lambda item: None,
                remaining=over,
            )
    finally:
        go_on.set()


@pytest.mark.django_db(transaction=True)
def test_the_threads_keep_no_connection() -> None:
    used = []

    def work(item: int) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        used.append(connections["default"])

    together(work, range(3), limit=3, tell=lambda item: None, remaining=no_limit)
    assert len(used) == 3
    assert all(connection.connection is None for connection in used)


@pytest.mark.django_db(transaction=True)
def test_in_transaction() -> None:
    assert not in_transaction()
    with transaction.atomic():
        assert in_transaction()


@pytest.mark.django_db
def test_a_test_case_is_a_transaction() -> None:
    assert in_transaction()
