"""Real servers on 127.0.0.1, each on the database of the running tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.contrib.scenarios import Site
from tests.contrib.workers import database_url
from tests.durability.forks import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
GUNICORN = ("-m", "gunicorn", "project.wsgi:application", "--bind", "fd://{fd}", "--timeout", "120")
COMMANDS = {
    "uvicorn": ("-m", "uvicorn", "project.asgi:application", "--fd", "{fd}", "--lifespan", "off"),
    "gunicorn": (*GUNICORN, "--workers", "4"),
    "gunicorn-threads": (*GUNICORN, "--workers", "2", "--worker-class", "gthread", "--threads=8"),
}


@contextmanager
def served(kind: str, folder: Path, **environment: str) -> Iterator[Site]:
    """Run a server on a socket of its own until the end; its output is in the folder.

    Without a DATABASE_URL in the environment given, it has the database of the running tests.
    """
    if "DATABASE_URL" not in environment:
        environment["DATABASE_URL"] = database_url()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        listener.set_inheritable(True)
        command = [part.format(fd=listener.fileno()) for part in COMMANDS[kind]]
        log = (folder / f"{kind}.log").open("wb")
        server = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **_environment(folder), **environment},
            preexec_fn=die_with_parent,
            pass_fds=(listener.fileno(),),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        port = listener.getsockname()[1]
    try:
        url = f"http://127.0.0.1:{port}"
        _answers(url, server, folder / f"{kind}.log")
        site = Site(url, folder, pid=server.pid)
        try:
            yield site
        finally:
            site.close()
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(30)
        log.close()


def _environment(folder: Path) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings",
        "NEXO_TEST_FOLDER": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONWARNINGS": "error:StreamingHttpResponse must consume:Warning",
    }


def _answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        assert server.poll() is None, log.read_text()
        try:
            # The socket takes connections before the server does.
            if httpx.get(f"{url}/nothing", timeout=5, trust_env=False).status_code == 404:
                return
        except httpx.TransportError:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
