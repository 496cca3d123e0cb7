"""Columns that give back exactly what was stored, on every database."""

from __future__ import annotations

import json
import logging
from typing import Any

from django.db import models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import post_delete

logger = logging.getLogger(__name__)


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


class OwnedFileField(models.FileField):
    """A file that goes with its row, after the deletion is committed, however that is deleted.

    Not where a statement deletes rows past the models; who does that deletes the files too.
    """

    def contribute_to_class(
        self, cls: type[models.Model], name: str, private_only: bool = False, **kwargs: Any
    ) -> None:
        super().contribute_to_class(cls, name, private_only=private_only, **kwargs)
        if not cls._meta.abstract:
            post_delete.connect(self._forget, sender=cls)

    def _forget(self, instance: Any, using: str, **kwargs: Any) -> None:
        file = getattr(instance, self.attname)
        transaction.on_commit(lambda: delete_file(file), using=using, robust=True)


def delete_file(file: Any) -> bool:
    """Delete a row's file, if it has one; False when that failed."""
    try:
        if file:
            file.storage.delete(file.name)
    except Exception as error:  # a storage of the host's may raise anything
        logger.warning("file=%s not deleted: %s", file.name, type(error).__name__)
        return False
    return True


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
