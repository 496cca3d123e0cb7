"""Columns that give back exactly what was stored, on every database."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that is compared byte for byte.

    MySQL's and MariaDB's usual collations ignore case, accents and trailing spaces, and so
    would give one user the session of another.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: dict[str, Any] = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class ExactJSONField(models.JSONField):
    """JSON that is kept as its text, so it can't be queried by key.

    PostgreSQL and MySQL reorder the keys of their JSON types and round its numbers; the
    request that is made from it would change its bytes, and a provider's cache not know it.
    """

    def get_internal_type(self) -> str:
        return "TextField"

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        if hasattr(value, "as_sql"):
            return value
        return json.dumps(value, ensure_ascii=False, cls=self.encoder)
