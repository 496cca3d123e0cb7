"""A database of its own for a run of experiments, made from a server's URL and dropped after."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit


def vendor(url: str) -> str:
    """Give sqlite, which is also what no URL means, postgresql or mysql."""
    scheme = urlsplit(url).scheme
    if not scheme or scheme.startswith("sqlite"):
        return "sqlite"
    return "postgresql" if scheme.startswith(("postgres", "psql", "pgsql")) else "mysql"


def with_name(url: str, name: str) -> str:
    """Give the URL of another database on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """Make an empty database beside the one of the URL, and drop it at the end.

    Without a URL, and on SQLite, it is a file in a directory of its own.
    """
    if vendor(url or "") == "sqlite":
        folder = tempfile.mkdtemp(prefix="nexo-durability-")
        try:
            yield f"sqlite:///{Path(folder) / 'durability.sqlite3'}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    name = f"nexo_durability{os.environ.get('TEST_DB_SUFFIX', '')}_{os.getpid()}"
    drop = f"DROP DATABASE IF EXISTS {name}"
    execute(url, drop)
    charset = "" if vendor(url) == "postgresql" else " CHARACTER SET utf8mb4"
    execute(url, f"CREATE DATABASE {name}{charset}")
    try:
        yield with_name(url, name)
    finally:
        execute(url, f"{drop} WITH (FORCE)" if vendor(url) == "postgresql" else drop)


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements with the driver itself, each committed, and give the last one's rows."""
    connection = connect(url)
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def connect(url: str) -> Any:
    """Open a connection of the driver, in autocommit."""
    parts = urlsplit(url)
    name = parts.path.lstrip("/")
    if vendor(url) == "postgresql":
        import psycopg

        return psycopg.connect(
            host=parts.hostname,
            port=parts.port or 5432,
            user=parts.username,
            password=parts.password,
            dbname=name,
            autocommit=True,
        )
    import MySQLdb

    return MySQLdb.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=parts.username or "root",
        passwd=parts.password or "",
        db=name,
        autocommit=True,
    )
