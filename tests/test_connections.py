"""Short transactions only, errors of ours only, and no connection held for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    transaction,
)
from django.test import TestCase

from nexo_django import connections
from nexo_django.exceptions import InsideTransaction, StoreFailed
from nexo_django.models import Chat
from tests.models.support import make_chat, side_by_side

real = pytest.mark.django_db(transaction=True)


@real
def test_outside_is_outside() -> None:
    connections.outside_transaction("default")


@real
def test_a_transaction_is_refused_with_a_way_out() -> None:
    with transaction.atomic(), pytest.raises(InsideTransaction, match="on_commit"):
        connections.outside_transaction("default")


@real
def test_autocommit_off_is_refused() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(InsideTransaction, match="autocommit"):
            connections.outside_transaction("default")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db
def test_a_tests_own_transaction_is_none() -> None:
    connections.outside_transaction("default")
    assert connections.in_test_transaction()
    with transaction.atomic(), pytest.raises(InsideTransaction):
        connections.outside_transaction("default")


class TestInsideDjangosTestCase(TestCase):
    def test_a_tests_own_transaction_is_none(self) -> None:
        connections.outside_transaction("default")
        with connections.short("default"):
            make_chat()
        with transaction.atomic(), pytest.raises(InsideTransaction):
            connections.outside_transaction("default")


@real
def test_a_short_transaction_commits_or_leaves_nothing() -> None:
    assert not connections.in_test_transaction()
    with connections.short("default"):
        kept = make_chat()

    def fail() -> None:
        with connections.short("default"):
            make_chat()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(Chat.objects.all()) == [kept]


@real
def test_a_databases_error_becomes_ours_without_its_text() -> None:
    chat = make_chat(instance_id="a-secret")
    with pytest.raises(StoreFailed) as caught, connections.short("default"):
        make_chat(agent_name=chat.agent_name, instance_id="a-secret")
    assert "IntegrityError" in str(caught.value)
    assert "a-secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, DataError, IntegrityError])
def test_every_database_error_is_mapped(error: Any) -> None:
    with pytest.raises(StoreFailed, match=error.__name__), connections.mapped():
        raise error("row: (secret)")
    with pytest.raises(StoreFailed, match="1205"), connections.mapped():
        raise error(1205, "row: (secret)")


@real
def test_a_connection_that_was_closed_under_a_turn() -> None:
    """A driver's connection that is gone fails one use of the store, and in our own terms."""
    if connection.vendor == "sqlite":
        pytest.skip("no server can close it")
    Chat.objects.exists()
    assert connection.connection is not None
    connection.connection.close()
    with pytest.raises(StoreFailed), connections.short("default"):
        make_chat()
    with connections.short("default"):
        kept = make_chat()
    assert list(Chat.objects.all()) == [kept]


def test_a_drivers_own_error_is_mapped() -> None:
    with pytest.raises(StoreFailed, match="2006") as caught, connections.mapped():
        raise connection.Database.OperationalError(2006, "row: (secret)")
    assert "secret" not in str(caught.value)


@real
@pytest.mark.parametrize(
    ("sql", "name"),
    [("SELECT 1 FROM no_such_thing", "no_such_thing"), ("SELECT nope FROM {table}", "nope")],
)
def test_what_is_not_migrated_is_named_with_the_way_out(sql: str, name: str) -> None:
    table = connection.ops.quote_name(Chat._meta.db_table)
    with (
        pytest.raises(StoreFailed, match=rf"{name}\). Run `python manage\.py migrate`"),
        connections.short("default"),
        connection.cursor() as cursor,
    ):
        cursor.execute(sql.format(table=table))


@real
def test_the_first_transaction_is_run_again_where_it_met_another() -> None:
    tries: list[int] = []

    def write() -> str:
        tries.append(1)
        make_chat()
        if len(tries) < 3:
            raise OperationalError("database is locked")
        return "done"

    assert connections.first("default", write) == "done"
    assert len(tries) == 3
    assert Chat.objects.count() == 1


@real
@pytest.mark.parametrize("error", [OperationalError("disk full"), IntegrityError("no")])
def test_other_failures_are_not_tried_again(error: Exception) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        raise error

    with pytest.raises(StoreFailed):
        connections.first("default", write)
    assert len(tries) == 1


def test_what_may_pass() -> None:
    class Cause(Exception):
        sqlstate = "40P01"

    deadlock = OperationalError("deadlock detected")
    deadlock.__cause__ = Cause()
    assert connections.transient(deadlock)
    assert connections.transient(OperationalError(1213, "Deadlock found"))
    assert connections.transient(OperationalError("database table is locked"))
    assert not connections.transient(OperationalError(2006, "server has gone away"))
    assert not connections.transient(IntegrityError(1213, "x"))


@real
def test_release_closes_what_is_too_old(settings: Any) -> None:
    Chat.objects.exists()
    for age, closed in ((None, False), (0, True)):
        connection.close()
        connection.settings_dict["CONN_MAX_AGE"], before = (
            age,
            connection.settings_dict["CONN_MAX_AGE"],
        )
        try:
            Chat.objects.exists()
            connections.release("default")
            assert (connection.connection is None) is (closed and connection.vendor != "sqlite")
        finally:
            connection.settings_dict["CONN_MAX_AGE"] = before


@real
def test_release_closes_always_when_told_to() -> None:
    Chat.objects.exists()
    connections.release("default", close=True)
    assert connection.connection is None
    connections.release("default")


@real
def test_release_leaves_a_transaction_alone() -> None:
    with transaction.atomic():
        make_chat()
        connections.release("default", close=True)
        assert connection.connection is not None
        connections.release_thread()
        assert Chat.objects.count() == 1
    assert Chat.objects.count() == 1


@real
def test_a_thread_gives_everything_back() -> None:
    def work() -> bool:
        Chat.objects.exists()
        connections.release_thread()
        return connection.connection is None

    assert side_by_side(work, work) == [True, True]
