"""The migrations are the models', on every database, forwards and backwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

import nexo_django.migrations

APP = "nexo_django"


def names() -> list[str]:
    folder = Path(nexo_django.migrations.__file__).parent
    return sorted(path.stem for path in folder.glob("0*.py"))


@pytest.mark.django_db
@pytest.mark.parametrize("auto_field", ["BigAutoField", "AutoField"])
def test_nothing_is_missing(settings: Any, auto_field: str) -> None:
    settings.DEFAULT_AUTO_FIELD = f"django.db.models.{auto_field}"
    call_command("makemigrations", APP, check=True, dry_run=True, verbosity=0)


def test_names_are_chosen_and_numbers_taken_once() -> None:
    assert all(re.fullmatch(r"\d{4}_[a-z_]+", name) and "auto" not in name for name in names())
    numbers = [name[:4] for name in names()]
    assert numbers == [f"{n:04}" for n in range(1, len(numbers) + 1)]


def test_every_operation_can_be_undone() -> None:
    loader = MigrationLoader(None)
    for (app, name), migration in loader.disk_migrations.items():
        if app == APP:
            assert all(operation.reversible for operation in migration.operations), name


@pytest.mark.django_db(transaction=True)
def test_back_to_nothing_and_forth() -> None:
    def tables() -> list[str]:
        return [name for name in connection.introspection.table_names() if name.startswith(APP)]

    before = tables()
    assert before
    try:
        call_command("migrate", APP, "zero", verbosity=0)
        assert tables() == []
    finally:
        call_command("migrate", APP, verbosity=0)
    assert tables() == before
