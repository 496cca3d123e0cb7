"""Settings of the worker processes that the durability proofs run and kill."""

from __future__ import annotations

from project.settings import DEFAULT_AUTO_FIELD as DEFAULT_AUTO_FIELD
from project.settings import USE_TZ as USE_TZ
from project.settings import database, env

SECRET_KEY = "only-for-tests"
DATABASES = {"default": database()}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "nexo_django"]

if POOL := env.int("NEXO_TEST_POOL", default=0):
    # Django's pool: every thread of a process shares these connections.
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": POOL, "timeout": 60}
if env.bool("NEXO_TEST_POOLER", default=False):
    # A transaction pooler gives the next transaction another server connection.
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True

NEXO = {
    "DEFAULT_MODEL": "nexo/offline",
    "LEASE_SECONDS": env.float("NEXO_TEST_LEASE_SECONDS", default=30.0),
    "TURN_WAIT": env.float("NEXO_TEST_TURN_WAIT", default=30.0),
    "MAX_IN_FLIGHT": env.int("NEXO_TEST_MAX_IN_FLIGHT", default=64),
}
