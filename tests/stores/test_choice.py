"""Which store the settings choose, and that a wrong one is never another in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from nexo_django.exceptions import ConfigurationError
from nexo_django.stores.choice import default_store, store_for
from nexo_django.stores.jsonl import JSONLStore
from nexo_django.stores.memory import MemoryStore


def test_the_database_where_the_app_is_installed(settings: Any) -> None:
    from nexo_django.stores.database import DatabaseStore

    for nexo in ({}, {"SESSION_STORE": None}, {"SESSION_STORE": "database"}):
        settings.NEXO = nexo
        assert isinstance(default_store(), DatabaseStore)


def test_what_the_settings_name(settings: Any, tmp_path: Path) -> None:
    settings.NEXO = {"SESSION_STORE": "memory"}
    assert isinstance(default_store(), MemoryStore)
    settings.NEXO = {"SESSION_STORE": f"jsonl:{tmp_path}"}
    store = default_store()
    assert isinstance(store, JSONLStore)
    assert store.directory == tmp_path


@pytest.mark.parametrize("value", ["redis", "jsonl:", "jsonl", "Memory", ""])
def test_an_unknown_store_is_refused(settings: Any, value: str) -> None:
    with pytest.raises(ConfigurationError):
        store_for(value)
    settings.NEXO = {"SESSION_STORE": value}
    with pytest.raises(ConfigurationError):
        default_store()


@pytest.mark.parametrize("label", ["nexo_django.Chat", "nexo_django.chat", None])
def test_the_packages_own_chat_model(settings: Any, label: str | None) -> None:
    settings.NEXO = {"SESSION_CHAT_MODEL": label, "SESSION_STORE": "memory"}
    assert isinstance(default_store(), MemoryStore)


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("shop.Chat", "no such model"),
        ("nexo_django.Chatt", "no such model"),
        ("nonsense", "SESSION_CHAT_MODEL"),
        ("auth.User", "not supported yet"),
    ],
)
@pytest.mark.parametrize("store", [None, "memory", "database"])
def test_a_wrong_chat_model_is_never_another_store(
    settings: Any, label: str, why: str, store: str | None
) -> None:
    settings.NEXO = {"SESSION_CHAT_MODEL": label, "SESSION_STORE": store}
    with pytest.raises(ImproperlyConfigured, match=why):
        default_store()


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ("", "MemoryStore"),
        ("settings.configure()", "MemoryStore"),
        ("settings.configure(); django.setup()", "MemoryStore"),
        ("settings.configure(NEXO={'SESSION_STORE': 'jsonl:x'})", "JSONLStore"),
        ("settings.configure(INSTALLED_APPS=['nexo_django'])", "django.setup()"),
        (
            "settings.configure(INSTALLED_APPS=['nexo_django.apps.NexoDjangoConfig'])",
            "django.setup()",
        ),
        (
            "settings.configure(NEXO={'SESSION_STORE': 'database'}); django.setup()",
            "INSTALLED_APPS",
        ),
        ("settings.configure(NEXO={'SESSION_CHAT_MODEL': 'a.B'})", "not supported yet"),
    ],
)
def test_without_the_app_it_is_memory(setup: str, told: str) -> None:
    code = f"""
import django
from django.conf import settings
{setup}
from nexo_django.exceptions import ConfigurationError
from nexo_django.stores.choice import default_store
try:
    print(type(default_store()).__name__)
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={},
    )
    assert told in done.stdout, done.stderr


MEMORY = """
from django.conf import settings
settings.configure({settings})
import django
django.setup()
from nexo_django.stores.choice import default_store
default_store()
default_store()
"""


@pytest.mark.parametrize(
    ("settings", "times"),
    [("", 1), ("NEXO={'SESSION_STORE': 'memory'}", 0), ("INSTALLED_APPS=['nexo_django']", 0)],
)
def test_a_site_without_the_app_is_told_once(settings: str, times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY.format(settings=settings)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={},
        check=True,
    )
    assert done.stderr.count("is not in INSTALLED_APPS") == times
