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
from types import SimpleNamespace
from typing import Any

from django.db import connections, models, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.query import ModelIterable
from django.db.models.sql.subqueries import InsertQuery, UpdateQuery

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


class Inserted(models.Model):
    """A model whose INSERT is compiled once; `save()` and its signals are as ever."""

    class Meta:
        abstract = True

    def _do_insert(
        self, manager: Any, using: Any, fields: Any, returning_fields: Any, raw: Any
    ) -> Any:
        key = manager.model._meta.auto_field
        usual = not raw and key is not None and list(returning_fields) == [key]
        if not usual or getattr(self, key.attname) is not None:
            return super()._do_insert(manager, using, fields, returning_fields, raw)  # type: ignore[misc]
        return [(_inserted(self, manager.model, using),)]


def _inserted(row: Any, model: Any, using: str) -> Any:
    """Insert a row and give the key that the database gave it."""
    connection = connections[using]
    values = {column.name: column.value(row, connection) for column in _columns(model)}
    made = tuple((n, v.milliseconds) for n, v in values.items() if type(v) is DatabaseTime)
    statement = _insert(model, using, connection.vendor, made)
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.filled(values))
        if statement.returning:
            return cursor.fetchone()[0]
        meta = model._meta
        return connection.ops.last_insert_id(cursor, meta.db_table, meta.auto_field.column)


@lru_cache(maxsize=SHAPES)
def _columns(model: Any) -> list[_Column]:
    """Give the columns of a row whose key the database gives."""
    meta = model._meta
    fields = [f for f in meta.local_concrete_fields if not f.generated]
    return [_Column(field) for field in fields if field is not meta.auto_field]


class _Column:
    """What to do with a column's value to save it; most of it is known beforehand."""

    def __init__(self, field: Any) -> None:
        self.field, self.name = field, field.attname
        known = type(field).__module__.partition(".")[0] in ("django", "nexo_django")
        self.is_text = known and isinstance(field, models.CharField | models.TextField)
        self.is_known = known
        self.is_read = type(field).pre_save is models.Field.pre_save

    def value(self, row: Any, connection: Any) -> Any:
        field = self.field
        value = getattr(row, self.name) if self.is_read else field.pre_save(row, True)
        # No field of Django or of ours changes these.
        if (value is None and self.is_known) or (type(value) is str and self.is_text):
            return value
        if type(value) is DatabaseTime:
            return value
        return field.get_db_prep_save(value, connection)


def select(build: Callable[..., Any], alias: str, *shape: Any, **values: Any) -> list[Any]:
    """Give the rows, or the tuples, of the queryset that `build(alias, *shape, **slots)` makes.

    The slots stand for `values`, text and whole numbers. Whatever else the SQL depends on is
    in `shape`; `build` is a function of a module.
    """
    statement = _select(build, alias, connections[alias].vendor, shape, tuple(values))
    return statement.rows(alias, values)


@dataclass(eq=False)
class _Statement:
    sql: str
    params: Sequence[Any]
    compiler: Any = None
    queryset: Any = None
    returning: bool = False

    def filled(self, values: Mapping[Any, Any]) -> tuple[Any, ...]:
        return tuple(values[p.value] if isinstance(p, Slot) else p for p in self.params)

    def rows(self, alias: str, values: Mapping[str, Any]) -> list[Any]:
        if issubclass(self.queryset._iterable_class, ModelIterable):
            return self._instances(alias, values)
        connection = connections[alias]
        with connection.cursor() as cursor:
            cursor.execute(self.sql, self.filled(values))
            found = list(map(list, cursor.fetchall()))
        for place, converters, expression in self._converters(connection):
            for row in found:
                # No converter of Django or of ours makes anything of NULL.
                if row[place] is not None:
                    for convert in converters:
                        row[place] = convert(row[place], expression, connection)
        return list(map(tuple, found))

    def _converters(self, connection: Any) -> list[tuple[int, Any, Any]]:
        """Give the places of the columns to convert; they are kept with their connection."""
        known: dict[Any, Any] = vars(connection).setdefault("_nexo_converters", {})
        if self not in known:
            if len(known) >= SHAPES:
                known.clear()
            compiler = self._compiler(connection)
            columns = [column for column, *_ in compiler.select[: compiler.col_count]]
            found = compiler.get_converters(columns)
            known[self] = [(place, *found[place]) for place in found]
        made: list[tuple[int, Any, Any]] = known[self]
        return made

    def _compiler(self, connection: Any) -> Any:
        # What a compiler knows after it made its SQL is all that reading the rows needs.
        compiler = copy.copy(self.compiler)
        compiler.connection = connection
        return compiler

    def _instances(self, alias: str, values: Mapping[str, Any]) -> list[Any]:
        compiler = self._compiler(connections[alias])
        made = self.sql, self.filled(values)
        compiler.as_sql = lambda *args, **kwargs: made
        return list(self.queryset._iterable_class(_Rows(alias, compiler, self.queryset)))


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
def _insert(model: Any, alias: str, vendor: str, made: tuple[tuple[str, int], ...]) -> _Statement:
    fields = [column.field for column in _columns(model)]
    slots: dict[str, Any] = {f.attname: Slot(f.attname) for f in fields}
    slots |= {name: DatabaseTime(milliseconds / 1000) for name, milliseconds in made}
    query = InsertQuery(model)
    row: Any = SimpleNamespace(**slots)
    query.insert_values(fields, [row], raw=True)
    compiler = query.get_compiler(alias)
    returning = connections[alias].features.can_return_columns_from_insert
    compiler.returning_fields = [model._meta.auto_field] if returning else None
    ((sql, params),) = compiler.as_sql()
    return _Statement(sql, params, returning=returning)


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
