"""Drafts on their way to other processes: through the database, or Redis where it is set.

A draft is text that will be stored anyway. One that is lost, or can't be kept, costs a
watcher the sight of it, and never the turn.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Protocol

from nexo_django import conf, connections
from nexo_django.contrib.live import Draft, Key
from nexo_django.models import tables
from nexo_django.models.clock import DatabaseTime
from nexo_django.sanitize import clean_text

logger = logging.getLogger(__name__)

# Between two writes of a draft that is watched, and between two looks whether it is.
PAUSE, UNWATCHED_PAUSE = 0.4, 1.0
WATCHED_SECONDS = 5
KEPT_SECONDS = 60

Shown = tuple[int, str, str]


class Drafts(Protocol):
    """Where drafts are kept."""

    def save(self, key: Key, shown: Shown) -> bool:
        """Keep a draft if somebody watches it, and say whether."""

    def load(self, keys: Collection[Key]) -> dict[Key, Shown]:
        """Give the drafts of chats, and say that they are watched."""

    def clear(self, key: Key) -> None:
        """Forget a draft."""


class DatabaseDrafts:
    """Drafts in a table of their own, which no transaction of a turn touches."""

    def save(self, key: Key, shown: Shown) -> bool:
        """Keep a draft if somebody watches it, and say whether."""
        at, content, reasoning = shown
        watched = self._rows(key[0]).filter(chat=key[1], watched_until__gte=DatabaseTime())
        return bool(watched.update(at=at, content=content, reasoning=reasoning))

    def load(self, keys: Collection[Key]) -> dict[Key, Shown]:
        """Give the drafts of chats, and say that they are watched."""
        found: dict[Key, Shown] = {}
        for alias in {alias for alias, _ in keys}:
            ids = [pk for of, pk in keys if of == alias]
            rows = self._rows(alias).filter(chat__in=ids)
            if self._watch(rows) < len(ids):
                self._add(alias, ids)
                self._watch(rows)
            for pk, *shown in rows.values_list("chat", "at", "content", "reasoning"):
                found[alias, pk] = (shown[0], shown[1], shown[2])
        return found

    def clear(self, key: Key) -> None:
        """Forget a draft."""
        self._rows(key[0]).filter(chat=key[1]).delete()

    def _watch(self, rows: Any) -> int:
        return int(rows.update(watched_until=DatabaseTime(WATCHED_SECONDS)))

    def _add(self, alias: str, ids: list[int]) -> None:
        table = tables().draft
        known = set(self._rows(alias).filter(chat__in=ids).values_list("chat", flat=True))
        new = [table(chat_id=pk) for pk in ids if pk not in known]
        self._rows(alias).bulk_create(new, ignore_conflicts=True)

    def _rows(self, alias: str) -> Any:
        return tables().draft._base_manager.using(alias).order_by()


class RedisDrafts:
    """Drafts in Redis, for a short time."""

    def __init__(self, url: str) -> None:
        import redis

        self.client: Any = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)

    def save(self, key: Key, shown: Shown) -> bool:
        """Keep a draft, which is cheap enough not to ask who watches."""
        self.client.set(_name(key), json.dumps(shown), ex=KEPT_SECONDS)
        return True

    def load(self, keys: Collection[Key]) -> dict[Key, Shown]:
        """Give the drafts of chats."""
        keys = list(keys)
        found = zip(keys, self.client.mget(map(_name, keys)), strict=True)
        return {key: tuple(json.loads(text)) for key, text in found if text}

    def clear(self, key: Key) -> None:
        """Forget a draft."""
        self.client.delete(_name(key))


def drafts() -> Drafts:
    """Give the place that the settings name."""
    url = conf.get("RELAY")
    return DatabaseDrafts() if url is None else _redis(url)


class Keeper:
    """Keeps the draft of a turn for other processes, a few times a second and no more.

    A turn that is short, or that nobody elsewhere watches, writes nothing.
    """

    def __init__(self, key: Key) -> None:
        self.key, self.kept = key, False
        self.next = time.monotonic() + PAUSE

    def __call__(self, draft: Draft) -> None:
        """Keep the draft as it is now, unless that was done just before."""
        if time.monotonic() < self.next:
            return
        shown = (draft.at, _joined(draft.content), _joined(draft.reasoning))
        watched = self._quietly("save", shown)
        self.kept = self.kept or bool(watched)
        self.next = time.monotonic() + (PAUSE if watched else UNWATCHED_PAUSE)

    def close(self) -> None:
        """Forget what was kept."""
        if self.kept:
            self._quietly("clear")

    def _quietly(self, verb: str, *arguments: Any) -> Any:
        try:
            return getattr(drafts(), verb)(self.key, *arguments)
        except Exception as error:  # a relay that fails must not fail the turn
            logger.warning("chat=%s draft not kept: %s", self.key[1], type(error).__name__)
            return False
        finally:
            connections.release(self.key[0])


def _joined(pieces: list[str]) -> str:
    return clean_text("".join(pieces))


@lru_cache(maxsize=4)
def _redis(url: str) -> RedisDrafts:
    return RedisDrafts(url)


def _name(key: Key) -> str:
    return f"nexo:draft:{key[0]}:{key[1]}"
