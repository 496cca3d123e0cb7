"""One owner at a time, by the database's clock, renewed for as long as it lives."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from django.db import connection

from nexo_django import leases
from nexo_django.leases import Lease
from nexo_django.models import Chat
from nexo_django.models.clock import DatabaseTime
from tests.models.support import LONG, eventually, make_chat, run_apart, side_by_side

real = pytest.mark.django_db(transaction=True)


@pytest.fixture
def short(settings: Any) -> None:
    settings.NEXO = {**settings.NEXO, "LEASE_SECONDS": 0.3}


@pytest.fixture
def lease() -> Lease:
    return Lease(Chat, "default", make_chat().pk)


def row(lease: Lease) -> Chat:
    return Chat.objects.get(pk=lease.chat_id)


def run_out(lease: Lease) -> None:
    Chat.objects.filter(pk=lease.chat_id).update(lease_expires_at=DatabaseTime(-1))


@pytest.mark.django_db
@pytest.mark.parametrize("use_tz", [True, False])
def test_it_is_taken_once_and_given_back(settings: Any, use_tz: bool) -> None:
    settings.USE_TZ = use_tz
    lease = Lease(Chat, "default", make_chat().pk)
    other = Lease(Chat, "default", lease.chat_id)
    assert lease.claim({}, open_turn=1)
    assert row(lease).lease_token == lease.token
    assert row(lease).open_turn == 1
    assert not other.claim({}, open_turn=2)
    assert row(lease).open_turn == 1
    lease.release()
    assert (row(lease).lease_token, row(lease).lease_expires_at) == ("", None)
    assert other.claim({})


@pytest.mark.django_db
def test_what_was_seen_must_still_be_so(lease: Lease) -> None:
    assert not lease.claim({"next_turn": 7})
    assert lease.claim({"next_turn": 1}, next_turn=2)
    assert not lease.renew({"next_turn": 1})
    assert lease.renew({"next_turn": 2}, next_turn=3)
    assert lease.read("next_turn", "lease_token") == (3, lease.token)


@pytest.mark.django_db
def test_one_that_ran_out_is_replaced_and_can_do_nothing(lease: Lease) -> None:
    other = Lease(Chat, "default", lease.chat_id)
    assert lease.claim({})
    run_out(lease)
    # Nobody came: it is still its own.
    assert lease.renew()
    run_out(lease)
    assert other.claim({})
    assert not lease.renew(open_turn=5)
    assert lease.read("pk") is None
    lease.release()
    assert row(lease).lease_token == other.token
    assert row(lease).open_turn is None


@pytest.mark.django_db
def test_claiming_forgets_an_earlier_cancellation(lease: Lease) -> None:
    Chat.objects.filter(pk=lease.chat_id).update(cancel_turn=1)
    assert lease.claim({})
    assert row(lease).cancel_turn is None


@real
def test_of_many_at_once_one_gets_it(lease: Lease) -> None:
    rivals = [Lease(Chat, "default", lease.chat_id) for _ in range(6)]
    won = side_by_side(*(lambda rival=rival: rival.claim({}) for rival in rivals))
    assert sorted(won) == [False] * 5 + [True]
    assert row(lease).lease_token == rivals[won.index(True)].token


@real
def test_it_is_renewed_while_it_is_kept(short: None, lease: Lease) -> None:
    assert lease.claim({})
    for _ in range(3):
        # Again: what keeps it must be started anew when nothing was kept for a while.
        before = row(lease).lease_expires_at
        leases.keep(lease)
        eventually(lambda before=before: row(lease).lease_expires_at > before)
    assert not lease.lost
    lease.release()
    assert row(lease).lease_token == ""


@real
def test_all_are_renewed_in_one_statement(
    lease: Lease, django_assert_num_queries: Any, monkeypatch: Any
) -> None:
    # The thread's connection is its own; here it is this test's, whose statements count.
    monkeypatch.setattr(connection, "close", lambda: None)
    kept = [lease, *(Lease(Chat, "default", make_chat().pk) for _ in range(4))]
    for each in kept:
        assert each.claim({})
        run_out(each)
    with django_assert_num_queries(1):
        leases.renew_all(kept)
    assert Chat.objects.leased().count() == 5
    assert not any(each.lost for each in kept)


@real
def test_one_that_another_has_is_lost(short: None, lease: Lease) -> None:
    fine = Lease(Chat, "default", make_chat().pk)
    for each in (lease, fine):
        assert each.claim({})
        leases.keep(each)
    Chat.objects.filter(pk=lease.chat_id).update(lease_token="another's")
    eventually(lambda: lease.lost)
    assert not fine.lost
    lease.release()
    assert row(lease).lease_token == "another's"
    fine.release()


@real
def test_one_that_was_dropped_is_not_renewed(short: None, lease: Lease) -> None:
    dropped = Lease(Chat, "default", make_chat().pk)
    assert dropped.claim({})
    leases.keep(dropped)
    chat_id = dropped.chat_id
    del dropped
    gc.collect()
    eventually(lambda: Chat.objects.free().filter(pk=chat_id).exists())


@real
def test_a_database_that_fails_is_asked_again(
    short: None, lease: Lease, monkeypatch: Any, caplog: Any
) -> None:
    failed = threading.Event()
    renew = leases._renew

    def fail_once(*args: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("gone")
        renew(*args)

    monkeypatch.setattr(leases, "_renew", fail_once)
    assert lease.claim({})
    leases.keep(lease)
    assert failed.wait(LONG)
    run_out(lease)
    eventually(lambda: Chat.objects.leased().filter(pk=lease.chat_id).exists())
    assert not lease.lost
    assert "OSError" in caplog.text
    lease.release()


@pytest.mark.django_db
def test_nothing_is_kept_inside_a_tests_transaction(lease: Lease) -> None:
    assert lease.claim({})
    leases.keep(lease)
    assert lease.token not in leases._heart.held


def test_a_forked_child_has_none_of_its_parents() -> None:
    child = run_apart(
        """
        from nexo_django import leases
        from nexo_django.models import Chat
        lease = leases.Lease(Chat, "default", 0)
        leases._heart.hold(lease)
        if os.fork() == 0:
            say(f"child {len(leases._heart.held)} {leases._heart.thread}")
            leases._heart.hold(lease)
            say(f"again {len(leases._heart.held)} {leases._heart.thread.is_alive()}")
            os._exit(0)
        os.wait()
        say(f"parent {len(leases._heart.held)} {leases._heart.thread.is_alive()}")
        """,
        "60",
    )
    said, _ = child.communicate(timeout=LONG)
    assert said.splitlines() == ["child 0 None", "again 1 True", "parent 1 True"]


@real
def test_a_forked_child_can_do_nothing_with_its_parents(
    lease: Lease, monkeypatch: Any, django_assert_num_queries: Any
) -> None:
    assert lease.claim({})
    monkeypatch.setattr(lease, "pid", lease.pid + 1)
    assert not lease.here
    with django_assert_num_queries(0):
        assert not lease.renew(next_turn=7)
        assert lease.read("next_turn") is None
        lease.release()
    assert row(lease).lease_token == lease.token
