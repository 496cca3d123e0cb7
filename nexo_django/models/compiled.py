"""Statements that are compiled once and run again with other values.

Django makes the SQL of a queryset anew each time, which takes longer than most databases need
to run it. A turn's statements have few shapes; a shape is what their SQL depends on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from django.db import connections, models, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.query import ModelIterable
from django.db.models.sql.subqueries import UpdateQuery

from nexo_django.models.clock import DatabaseTime

SHAPES = 256


@dataclass(frozen=True)
class Add:
    """What is added to a column's value, in the database; NULL stays NULL."""

    amount: int | Decimal


class Slot(Value):
    """The place in a statement of a value that comes when it is run."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]


def update(
    model: Any,
    alias: str,
    where: Mapping[str, Any],
    changes: Mapping[str, Any],
    among: Callable[[Any], Any] | None = None,
) -> int:
    """Change the rows whose columns are `where`, and count them, as `QuerySet.update` does.

    Changes are plain values, `Add` and `DatabaseTime`; `among` narrows a queryset further.
    """
    where, changes = _keyed(where), _keyed(changes)
    statement = _update(
        model,
        alias,
        connections[alias].vendor,
        among,
        tuple((name, value is None) for name, value in where.items()),
        tuple((name, _kind(value)) for name, value in changes.items()),
    )
    connection = connections[alias]
    values = {("where", name): value for name, value in where.items()}
    for name, value in changes.items():
        plain = value.amount if isinstance(value, Add) else value
        if not isinstance(plain, DatabaseTime):
            column = model._meta.get_field(name)
            values["set", name] = column.get_db_prep_save(plain, connection)
    with transaction.mark_for_rollback_on_error(using=alias), connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.filled(values))
        return int(cursor.rowcount)


def select(build: Callable[..., Any], alias: str, *shape: Any, **values: Any) -> list[Any]:
    """Give the rows, or the tuples, of the queryset that `build(alias, *shape, **slots)` makes.

    The slots stand for `values`, text and whole numbers. Whatever else the SQL depends on is
    in `shape`; `build` is a function of a module.
    """
    statement = _select(build, alias, connections[alias].vendor, shape, tuple(values))
    return statement.rows(alias, values)


@dataclass
class _Statement:
    sql: str
    params: Sequence[Any]
    compiler: Any = None
    queryset: Any = None

    def filled(self, values: Mapping[Any, Any]) -> tuple[Any, ...]:
        return tuple(values[p.value] if isinstance(p, Slot) else p for p in self.params)

    def rows(self, alias: str, values: Mapping[Any, Any]) -> list[Any]:
        # What a compiler knows after it made its SQL is all that reading the rows needs.
        compiler = copy.copy(self.compiler)
        compiler.connection = connections[alias]
        made = self.sql, self.filled(values)
        compiler.as_sql = lambda *args, **kwargs: made
        iterable = self.queryset._iterable_class
        if issubclass(iterable, ModelIterable):
            return list(iterable(_Rows(alias, compiler, self.queryset)))
        return list(compiler.results_iter(tuple_expected=True))


@dataclass
class _Rows:
    """What Django asks of a queryset to make its instances."""

    db: str
    compiler: Any
    queryset: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queryset, name)

    @property
    def query(self) -> Any:
        return self

    def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiler


@lru_cache(maxsize=SHAPES)
def _update(
    model: Any,
    alias: str,
    vendor: str,
    among: Callable[[Any], Any] | None,
    where: tuple[tuple[str, bool], ...],
    changes: tuple[tuple[str, Any], ...],
) -> _Statement:
    rows = model._base_manager.using(alias).order_by()
    rows = rows.filter(**{n: None if null else Slot(("where", n)) for n, null in where})
    query = (rows if among is None else among(rows)).query.chain(UpdateQuery)
    query.add_update_values({name: _change(model, name, kind) for name, kind in changes})
    return _Statement(*query.get_compiler(alias).as_sql())


@lru_cache(maxsize=SHAPES)
def _select(
    build: Callable[..., Any], alias: str, vendor: str, shape: Any, names: tuple[str, ...]
) -> _Statement:
    rows = build(alias, *shape, **{name: Slot(name) for name in names})
    compiler = rows.query.get_compiler(alias)
    sql, params = compiler.as_sql()
    # It must not keep the connection of the thread that happened to come first.
    compiler.connection = None
    return _Statement(sql, params, compiler, rows)


def _kind(value: Any) -> Any:
    if isinstance(value, DatabaseTime):
        return value.milliseconds
    return None if value is None else Add if isinstance(value, Add) else "value"


def _change(model: Any, name: str, kind: Any) -> Any:
    if isinstance(kind, int):
        return DatabaseTime(kind / 1000)
    column = model._meta.get_field(name)
    slot = Slot(("set", name), output_field=column)
    if kind is None:
        return None
    return slot if kind is not Add else _sum(column, slot)


def _sum(column: Any, slot: Slot) -> Any:
    after = F(column.name) + slot
    if not isinstance(column, models.DecimalField):
        return after
    # A sum that no longer fits stays at the most that does.
    most = Decimal(10 ** (column.max_digits - column.decimal_places) - 1)
    full = When(Q(**{f"{column.name}__gt": Value(most, output_field=column) - slot}), then=most)
    return Case(full, default=after, output_field=column)


def _keyed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.pk if isinstance(v, models.Model) else v for n, v in values.items()}
