"""One thread of a process that asks the database about all watched chats at once.

A turn that runs in this process wakes its watchers itself; the others' are woken from here,
whatever their number: one statement, twice a second, and one connection.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from django.db.models import Q

from nexo_django.connections import release
from nexo_django.contrib.drafts import drafts
from nexo_django.contrib.live import Key, Topic, topics
from nexo_django.models import tables
from nexo_django.models.clock import DatabaseTime

logger = logging.getLogger(__name__)

SECONDS = 0.5
COLUMNS = ("message_count", "next_turn", "open_turn", "lease_token")


class Pulse:
    """The thread; it runs while somebody watches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: a forked child does not have its parent's thread."""
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.seen: dict[Key, Any] = {}

    def start(self) -> None:
        """Run, if it does not yet."""
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="nexo-pulse", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(SECONDS):
            with self.lock:
                watched = topics.watched()
                if not watched:
                    self.thread, self.seen = None, {}
                    return
            try:
                self.beat(watched)
            except Exception as error:
                # The next beat tries again.
                logger.warning("chats=%d error=%s", len(watched), type(error).__name__)
            finally:
                for alias in {alias for alias, _ in watched}:
                    release(alias)

    def beat(self, watched: dict[Key, Topic]) -> None:
        """Wake the watchers of what has changed, and show them drafts from elsewhere."""
        now: dict[Key, Any] = {}
        for alias in {alias for alias, _ in watched}:
            now |= _states(alias, [pk for of, pk in watched if of == alias])
        for key, topic in watched.items():
            state = now.get(key)
            if self.seen.get(key, state) != state or key not in self.seen:
                topic.touch()
        self.seen = {key: now.get(key) for key in watched}
        elsewhere = {key for key, state in now.items() if state[-1] and not watched[key].publishers}
        for key, shown in (drafts().load(elsewhere) if elsewhere else {}).items():
            watched[key].show(*shown)


def _states(alias: str, ids: list[int]) -> dict[Key, Any]:
    chats = tables().chat.objects.using(alias).filter(pk__in=ids).order_by()
    leased = Q(lease_expires_at__gte=DatabaseTime()) & ~Q(lease_token="")
    rows = chats.annotate(leased=leased).values_list("pk", *COLUMNS, "leased")
    return {(alias, pk): tuple(state) for pk, *state in rows}


pulse = Pulse()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pulse.reset)
