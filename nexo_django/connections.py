"""Short transactions, and connections that are not held while a model or a tool runs."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.db import Error, OperationalError, connections, transaction

from nexo_django import conf
from nexo_django.exceptions import InsideTransaction, StoreFailed

T = TypeVar("T")

# Deadlock and serialization failure, on PostgreSQL; deadlock, lock wait timeout and changed
# record, on MariaDB and MySQL.
_SQLSTATES = ("40P01", "40001", "55P03")
_ERRNOS = (1213, 1205, 1020)
# A table or a column that is not there, by sqlstate, by number, and in SQLite's words.
_MISSING = ("42P01", "42703", 1146, 1054)
# The name of a table or column is no content.
_NAMED = re.compile(
    r"(?:no such (?:table|column): |(?:relation|column) \"|Table '|Unknown column ')([\w.]+)"
)
_MISSING_WORDS = ("no such table", "no such column", "has no column named")


def release(alias: str, *, close: bool = False) -> None:
    """Give this thread's connection back, unless a transaction is open.

    A pooled connection returns to its pool; another is closed if it is older than
    CONN_MAX_AGE or broken, and with `close` always: a thread of a tool has no later use of it.
    On SQLite no server has to hold it, and to close the last one costs a checkpoint.
    """
    connection: Any = connections[alias]
    if connection.connection is None or connection.in_atomic_block:
        return
    pooled = connection.settings_dict.get("OPTIONS", {}).get("pool")
    # One that the server has closed is gone, even where closing it fails.
    with suppress(Error, connection.Database.Error):
        if close or pooled:
            connection.close()
        elif connection.vendor != "sqlite":
            connection.close_if_unusable_or_obsolete()


def release_thread() -> None:
    """Give back every connection of this thread, as a thread of a pool must after each task."""
    if conf.configured():
        for connection in connections.all(initialized_only=True):
            release(connection.alias, close=True)


def in_test_transaction() -> bool:
    """Whether this thread is inside a TestCase's transaction, which no other can see into."""
    return conf.configured() and any(
        _from_test(connection) for connection in connections.all(initialized_only=True)
    )


def outside_transaction(alias: str) -> None:
    """Raise InsideTransaction where a write would not be committed when it returns.

    The transactions that TestCase opens around a test are exempt, as Django's own durable
    blocks exempt them.
    """
    connection = connections[alias]
    if _from_test(connection):
        return
    if connection.in_atomic_block:
        raise InsideTransaction(
            f"A turn can't run inside a transaction on {alias!r}: what it stores must outlive a "
            f"rollback. Call it outside atomic(), with transaction.non_atomic_requests on the "
            f"view if ATOMIC_REQUESTS is set, or queue it with transaction.on_commit()."
        )
    with mapped("read"):
        manual = not connection.get_autocommit()
    if manual:
        raise InsideTransaction(f"A turn needs autocommit, which is off on {alias!r}.")


@contextmanager
def mapped(what: str = "written") -> Iterator[None]:
    """Turn a database's errors into StoreFailed, also those that Django leaves as they are.

    Their texts are left out: databases put the values of the row into them.
    """
    try:
        yield
    except _errors() as error:
        # One that broke would fail this thread's next turn too.
        for connection in connections.all(initialized_only=True):
            release(connection.alias)
        code = _code(error)
        failure = f"{type(error).__name__}{'' if code is None else f' {code}'}"
        if code in _MISSING or (code == "SQLITE_ERROR" and _says(error, *_MISSING_WORDS)):
            name = _NAMED.search(str(error))
            lacks = f" ({name[1]})" if name else ""
            raise StoreFailed(
                f"The store could not be {what} ({failure}): the database lacks a table or a "
                f"column that this version has{lacks}. Run `python manage.py migrate`, on the "
                f"database that the router names for chats."
            ) from None
        raise StoreFailed(
            f"The store could not be {what} ({failure}); what was committed before is kept."
        ) from None


@contextmanager
def short(alias: str) -> Iterator[None]:
    """Run one durable transaction, with a database's errors mapped."""
    outside_transaction(alias)
    with mapped(), transaction.atomic(using=alias, durable=True):
        yield


def first(alias: str, write: Callable[[], T]) -> T:
    """Run the first transaction of a turn, and again where it met another's.

    Nothing depends on it yet, so it may be repeated as a whole; later ones may not.
    """
    with mapped():
        for pause in (0.05, 0.1, 0.2, 0.4, None):
            try:
                with transaction.atomic(using=alias, durable=True):
                    return write()
            except OperationalError as error:
                if pause is None or not transient(error):
                    raise
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311
    raise AssertionError("the last attempt returns or raises")


def transient(error: BaseException) -> bool:
    """Whether a transaction that failed so may succeed if it is run again as a whole."""
    if not isinstance(error, OperationalError):
        return False
    cause: Any = error.__cause__
    if getattr(cause, "sqlstate", None) in _SQLSTATES:
        return True
    number = error.args[0] if error.args else None
    return number in _ERRNOS or "locked" in str(number)


def _from_test(connection: Any) -> bool:
    blocks = connection.atomic_blocks
    return bool(blocks) and getattr(blocks[-1], "_from_testcase", False)


def _errors() -> tuple[type[Exception], ...]:
    """Give Django's class of errors, and the drivers' own."""
    initialized: Sequence[Any] = connections.all(initialized_only=True)
    return (Error, *(connection.Database.Error for connection in initialized))


def _says(error: BaseException, *words: str) -> bool:
    return any(text in str(error) for text in words)


def _code(error: BaseException) -> Any:
    cause: Any = error.__cause__ or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    if code is None and error.args and isinstance(error.args[0], int):
        code = error.args[0]
    return code
