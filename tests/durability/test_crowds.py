"""Several processes at one session; see experiments.py for fifty."""

from __future__ import annotations

import pytest

from tests.durability import pgbouncer, redelivery, scratch
from tests.durability.conftest import Experiment, database_url

pytestmark = pytest.mark.timeout(900)

postgresql = pytest.mark.skipif(
    scratch.vendor(database_url()) != "postgresql",
    reason="its connections are counted on PostgreSQL only",
)


def test_a_crowd_is_served_one_by_one(experiment: Experiment) -> None:
    printed = experiment("experiments", "crowd", "--processes", "8")
    assert "8 replies" in printed
    assert "7 SessionBusy" in printed


def test_a_crowd_makes_one_chat(experiment: Experiment) -> None:
    printed = experiment("experiments", "creation", "--processes", "8", "--rounds", "1")
    assert "1 chats" in printed


def test_a_finished_result_survives_its_sibling(experiment: Experiment) -> None:
    assert "0 failures" in experiment("experiments", "siblings")


def test_a_frozen_owner_writes_nothing_more(experiment: Experiment) -> None:
    assert "the frozen worker got LeaseLost" in experiment("experiments", "frozen")


def test_one_key_is_one_turn(experiment: Experiment) -> None:
    assert "0 failures" in experiment("experiments", "redelivery", "--processes", "6")


@pytest.mark.parametrize("broker", sorted(redelivery.BROKERS))
def test_a_redelivered_task_is_one_turn(experiment: Experiment, broker: str) -> None:
    if not redelivery.reachable(redelivery.BROKERS[broker]):
        pytest.skip(f"nothing answers at {redelivery.BROKERS[broker]}")
    assert "0 failures" in experiment("experiments", "brokers", "--brokers", broker)


def test_a_database_that_fails_leaves_no_half_turn(experiment: Experiment) -> None:
    assert "0 failures" in experiment("experiments", "faults", "--faults", "60", "--seed", "5")


@postgresql
def test_waiting_turns_share_few_connections(experiment: Experiment) -> None:
    small = ("--turns", "30", "--seconds", "0.5", "--connections", "5")
    assert "30 replies" in experiment("experiments", "waiting", *small)


@postgresql
@pytest.mark.skipif(pgbouncer.program() is None, reason="PgBouncer is not installed")
def test_a_crowd_through_a_transaction_pooler(experiment: Experiment) -> None:
    assert "8 replies" in experiment("experiments", "pgbouncer", "--processes", "8")
