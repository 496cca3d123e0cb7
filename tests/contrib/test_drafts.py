"""Drafts reach other processes through the database and through Redis, and only while watched."""

from __future__ import annotations

import subprocess
import time

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from nexo_django import Session
from nexo_django.contrib import drafts as module
from nexo_django.contrib.drafts import DatabaseDrafts, Keeper, RedisDrafts, drafts
from nexo_django.contrib.live import Draft
from nexo_django.models import Draft as Row
from tests.contrib.site.agents import Web
from tests.durability.forks import until


@pytest.fixture
def key(db):
    session = Session.resume(Web, "drafts")
    session.prompt("say hello")
    return ("default", session.stored._rows().get().pk)


def test_a_draft_in_the_database_is_kept_while_it_is_watched(key):
    made = DatabaseDrafts()
    assert made.save(key, (3, "a", "")) is False
    assert made.load([key]) == {key: (0, "", "")}
    assert made.save(key, (3, "a", "b")) is True
    assert made.load([key]) == {key: (3, "a", "b")}
    assert Row.objects.count() == 1
    Row.objects.update(watched_until=None)
    assert made.save(key, (3, "ab", "")) is False
    made.clear(key)
    assert Row.objects.count() == 0


def test_a_chat_that_goes_takes_its_draft_with_it(key):
    DatabaseDrafts().load([key])
    assert Session.get(Web, "drafts").delete()["drafts"] == 1
    # Who still watches stands in no way.
    DatabaseDrafts().load([key])


def test_a_turn_that_nobody_watches_writes_nothing(key):
    keeper = Keeper(key)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        keeper(Draft(3, ["text"]))
    assert not captured.captured_queries
    keeper.next = 0.0
    with CaptureQueriesContext(connection) as captured:
        for _ in range(100):
            keeper(Draft(3, ["text"]))
        keeper.close()
    assert len(captured.captured_queries) == 1


def test_a_relay_that_fails_does_not_fail_the_turn(key, caplog):
    keeper = Keeper(key)
    keeper.next = 0.0
    with override_settings(NEXO={"RELAY": "redis://127.0.0.1:1/0"}):
        keeper(Draft(3, ["text"]))
    assert "draft not kept: ConnectionError" in caplog.text


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]
    try:
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("there is no redis-server")
    try:
        until(path.exists, "redis")
        yield f"unix://{path}"
    finally:
        server.terminate()
        server.wait(30)


def test_a_draft_in_redis(redis_url, db):
    key, other = ("default", 1), ("default", 2)
    with override_settings(NEXO={"RELAY": redis_url}):
        made = drafts()
        assert isinstance(made, RedisDrafts)
        assert made is drafts()
        assert made.save(key, (3, "ä", ""))
        assert made.load([key, other]) == {key: (3, "ä", "")}
        assert 0 < made.client.ttl(module._name(key)) <= module.KEPT_SECONDS
        keeper = Keeper(key)
        keeper.next = time.monotonic()
        keeper(Draft(4, ["a\x00", "b\ud800"]))
        assert made.load([key])[key][0] == 4
        keeper.close()
        assert made.load([key]) == {}
