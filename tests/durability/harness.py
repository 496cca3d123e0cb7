"""What every experiment starts from: its own database, its own settings, and Django set up once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.durability import scratch
from tests.durability.forks import call


@contextmanager
def prepared(url: str | None, **settings: Any) -> Iterator[str]:
    """Make a database, point the settings at it, migrate it, and give its URL.

    `settings` are the environment of tests/durability/settings.py, in lower case and without
    its prefix. Nothing that the parent must not have (a connection, a thread) is left in it.
    """
    folder = tempfile.mkdtemp(prefix="nexo-journal-")
    names = {f"NEXO_TEST_{name.upper()}": str(value) for name, value in settings.items()}
    try:
        with scratch.database(url) as own:
            os.environ.update(
                names,
                DATABASE_URL=own,
                NEXO_TEST_JOURNAL=folder,
                DJANGO_SETTINGS_MODULE="tests.durability.settings",
            )
            call(_migrate)
            _warm()
            yield own
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _warm() -> None:
    """Import everything a turn needs, so that the children find it there."""
    import django

    django.setup()
    from tests.durability import points, verify  # noqa: F401

    points.watch_connections()


def expire(instance: str) -> None:
    """Make the lease of a session end now, in place of waiting for it."""
    from nexo_django.models import Chat
    from nexo_django.models.clock import DatabaseTime

    Chat.objects.filter(instance_id=instance, lease_expires_at__isnull=False).update(
        lease_expires_at=DatabaseTime(-1)
    )
