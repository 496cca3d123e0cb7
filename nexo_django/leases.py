"""The right to run a turn on a chat: taken and given back by single conditional UPDATEs.

Who holds it says a token in the chat's row; until when, the database's clock. One thread of
the process renews all that it holds, so that only an owner that died is ever replaced.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from django.db import connections

from nexo_django import conf
from nexo_django.connections import release
from nexo_django.models import compiled
from nexo_django.models.clock import DatabaseTime
from nexo_django.models.querysets import ChatQuerySet

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Lease:
    """A lease on a chat, with a token that is never used again.

    `lost` is set when a renewal found another's token; that it is still ours only a fenced
    write (`renew`) knows for sure. Whoever keeps the lease must keep this object: one that
    was dropped is not renewed. A forked child can do nothing with its parent's.
    """

    chats: Any
    alias: str
    chat_id: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    lost: bool = False
    pid: int = field(default_factory=os.getpid)

    @property
    def here(self) -> bool:
        """Whether this process took it, rather than one that it was forked from."""
        return self.pid == os.getpid()

    def claim(self, only: Mapping[str, Any], **changes: Any) -> bool:
        """Take the lease if it is free or has run out, and the row is `only` like that."""
        after = {**claimed(self.token), "cancel_turn": None, **changes}
        return self._update(only, after, among=ChatQuerySet.free)

    def renew(self, only: Mapping[str, Any] | None = None, **changes: Any) -> bool:
        """Renew the lease if it is still ours: the fence that every write begins with."""
        after = {"lease_expires_at": expiry(), **changes}
        return self._update({"lease_token": self.token, **(only or {})}, after)

    def read(self, *names: str) -> tuple[Any, ...] | None:
        """Read columns of the chat, or None if the lease is no longer ours."""
        if not self.here:
            return None
        found: tuple[Any, ...] | None
        row = self.chats.objects.using(self.alias).filter(pk=self.chat_id).order_by()
        found = row.filter(lease_token=self.token).values_list(*names).first()
        return found

    def release(self) -> None:
        """Give the lease back, if it is still ours."""
        _heart.drop(self)
        if not self.lost:
            self._update({"lease_token": self.token}, {"lease_token": "", "lease_expires_at": None})

    def _update(self, only: Mapping[str, Any], changes: Mapping[str, Any], **more: Any) -> bool:
        where = {"pk": self.chat_id, **only}
        return self.here and bool(compiled.update(self.chats, self.alias, where, changes, **more))


def expiry() -> DatabaseTime:
    """Give when a lease that is renewed now runs out."""
    return DatabaseTime(conf.get("LEASE_SECONDS"))


def claimed(token: str) -> dict[str, Any]:
    """Give the columns of a chat whose lease was just taken."""
    return {"lease_token": token, "lease_expires_at": expiry()}


def keep(lease: Lease) -> None:
    """Renew a lease from now on, until it is released or its object dropped.

    Not inside a test's transaction, which no other connection sees, nor for a database in
    memory, which no other process has.
    """
    connection = connections[lease.alias]
    in_memory = getattr(connection, "is_in_memory_db", lambda: False)()
    if not connection.in_atomic_block and not in_memory:
        _heart.hold(lease)


class _Heart:
    """The process's leases, and the thread that renews them while there are any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: a forked child has neither the thread nor its parent's leases."""
        self.lock = threading.Lock()
        self.held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self.thread: threading.Thread | None = None
        self.woken = threading.Event()
        # What LEASE_SECONDS was when the thread began to wait.
        self.period = 0.0

    def hold(self, lease: Lease) -> None:
        with self.lock:
            self.held[lease.token] = lease
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="nexo-leases", daemon=True)
                self.thread.start()
            elif self.period == conf.get("LEASE_SECONDS"):
                return
        # The setting has changed since the thread began to wait.
        self.woken.set()

    def drop(self, lease: Lease) -> None:
        with self.lock:
            self.held.pop(lease.token, None)

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            self.period = conf.get("LEASE_SECONDS")
            left = last + self.period / 3 - time.monotonic()
            if left > 0:
                self.woken.wait(left)
                self.woken.clear()
            elif self._beat():
                last = time.monotonic()
            else:
                return

    def _beat(self) -> bool:
        with self.lock:
            held = list(self.held.values())
            if not held:
                self.thread = None
                return False
        renew_all(held)
        return True


def renew_all(leases: Iterable[Lease]) -> None:
    """Renew leases, in one statement for each database; mark those that are lost."""
    groups: defaultdict[tuple[str, Any], list[Lease]] = defaultdict(list)
    for lease in leases:
        groups[lease.alias, lease.chats].append(lease)
    for (alias, chats), group in groups.items():
        try:
            _renew(alias, chats, group)
        except Exception as error:
            # The next beat tries again; until the lease runs out nobody takes it.
            logger.warning(
                "database=%s leases=%d error=%s", alias, len(group), type(error).__name__
            )
        finally:
            release(alias, close=True)


def _renew(alias: str, chats: Any, leases: list[Lease]) -> None:
    tokens = {lease.token for lease in leases}
    ids = [lease.chat_id for lease in leases]
    rows = chats.objects.using(alias).filter(pk__in=ids, lease_token__in=tokens).order_by()
    if rows.update(lease_expires_at=expiry()) == len(leases):
        return
    ours = set(rows.values_list("lease_token", flat=True))
    for lease in leases:
        # One that was released meanwhile is nobody's loss.
        lease.lost = lease.lost or lease.token not in ours


_heart = _Heart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_heart.reset)
