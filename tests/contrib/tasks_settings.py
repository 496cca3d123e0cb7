"""Settings of a site whose tasks are kept in its database."""

from __future__ import annotations

from tests.durability import settings
from tests.durability.settings import *  # noqa: F403

INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks_db", "tests.contrib"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
