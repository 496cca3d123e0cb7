"""The database's own clock: leases of several hosts are never compared by theirs."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Func
from django.db.models.sql.compiler import SQLCompiler


class DatabaseTime(Func):
    """The time that it is in the database, plus some seconds.

    Unlike `Now()` it is UTC on MySQL too, where the session's time zone could jump an hour.
    """

    output_field = DateTimeField()

    def __init__(self, seconds: float = 0.0, **extra: Any) -> None:
        super().__init__(**extra)
        self.milliseconds = round(seconds * 1000)

    def as_sql(  # type: ignore[override]
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any
    ) -> tuple[str, list[Any]]:
        if connection.vendor == "postgresql":
            after = f" + INTERVAL '{self.milliseconds} milliseconds'" if self.milliseconds else ""
            return f"(STATEMENT_TIMESTAMP(){after})", []
        if connection.vendor == "mysql":
            micro = self.milliseconds * 1000
            return f"TIMESTAMPADD(MICROSECOND, {micro}, UTC_TIMESTAMP(6))", []
        shift = f"{self.milliseconds / 1000:+.3f} seconds"
        return f"STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', '{shift}')", []
