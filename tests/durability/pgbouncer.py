"""A crowd through PgBouncer in transaction pooling: each transaction may get another connection."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.durability import crowds
from tests.durability.forks import until
from tests.durability.report import Report

INI = """
[databases]
* = host={host} port={server} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
ignore_startup_parameters = extra_float_digits,options
"""


def program() -> str | None:
    """Give the path of PgBouncer, or None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def crowd(report: Report, url: str, processes: int) -> None:
    """Run the experiments with a crowd through a pooler of five connections."""
    if program() is None:
        report.say("pgbouncer: not installed, left out")
        return
    with _pooler(url) as pooled:
        os.environ.update(DATABASE_URL=pooled, NEXO_TEST_POOLER="true")
        try:
            _point_django_at(pooled)
            crowds.crowd(report, processes)
            crowds.creation(report, processes, 1)
        finally:
            os.environ.update(DATABASE_URL=url)
            del os.environ["NEXO_TEST_POOLER"]


def _point_django_at(url: str) -> None:
    """Change the settings of the warmed process, which has no connection yet."""
    from django.db import connections

    parts = urlsplit(url)
    settings = connections["default"].settings_dict
    settings.update(HOST=parts.hostname, PORT=parts.port, DISABLE_SERVER_SIDE_CURSORS=True)


@contextmanager
def _pooler(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="nexo-pgbouncer-"))
    ini = folder / "pgbouncer.ini"
    login = parts.username or "postgres"
    server = {"host": parts.hostname, "server": parts.port or 5432, "user": login}
    password = f" password='{parts.password}'" if parts.password else ""
    ini.write_text(INI.format(**server, password=password, port=port))
    # It refuses to run as root.
    user = "nobody" if os.getuid() == 0 else None
    if user is not None:
        for path in (folder, ini):
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
    log = (folder / "log").open("wb")
    process = subprocess.Popen([program() or "", str(ini)], stdout=log, stderr=log, user=user)
    try:
        until(lambda: _listens(port), "PgBouncer")
        yield urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
    finally:
        process.kill()
        process.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
