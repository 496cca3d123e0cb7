"""What the tests of rows share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.db import connection, connections

from nexo_django.messages import ASSISTANT, TOOL, USER, Message, ToolCall
from nexo_django.models import Chat, Model, Turn
from nexo_django.models import Message as Row
from nexo_django.models import ToolCall as ToolCallRow
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.database import DatabaseChat, DatabaseStore

LONG = 60


def make_chat(**fields: Any) -> Chat:
    """Make a chat's row that no other test has."""
    names = {"agent_name": "Rows", "instance_id": uuid.uuid4().hex}
    return Chat.objects.create(**{**names, **fields})


def new_chat() -> DatabaseChat:
    """Give the handle of a chat that is not stored yet."""
    return DatabaseStore().chat("Rows", uuid.uuid4().hex)


def row_of(chat: DatabaseChat) -> Chat:
    """Read a handle's row."""
    return Chat.objects.get(agent_name=chat.agent_name, instance_id=chat.instance_id)


def ask(text: str = "hello", **fields: Any) -> TurnRequest:
    """Make a request for a new turn that does not wait."""
    return TurnRequest(Message(USER, text), **{"wait": 0, "model": "nexo/offline", **fields})


def go_on(**fields: Any) -> TurnRequest:
    """Make a request to continue that does not wait."""
    return TurnRequest(None, **{"wait": 0, "model": "nexo/offline", **fields})


def calling(*names: str) -> Message:
    """Make an assistant message with calls `call_0`, `call_1` and so on."""
    calls = tuple(ToolCall(f"call_{n}", name, {"n": n}) for n, name in enumerate(names))
    return Message(ASSISTANT, None, tool_calls=calls)


def result(n: int, text: str | None = None, **fields: Any) -> Message:
    """Make the result of `call_n`."""
    return Message(TOOL, text or f"result {n}", tool_call_id=f"call_{n}", **fields)


def answer(chat: DatabaseChat, text: str = "hello", **fields: Any) -> None:
    """Run a turn that ends well."""
    turn = chat.begin(ask(text, **fields))
    turn.append(Message(ASSISTANT, f"answer to {text}"))
    turn.close()


def abandon(chat: DatabaseChat) -> None:
    """Free the lease as its running out does, with nothing said of the turn."""
    Chat.objects.filter(pk=row_of(chat).pk).update(lease_token="", lease_expires_at=None)


def side_by_side(*work: Callable[[], Any]) -> list[Any]:
    """Run functions in threads that start together; give what each returned or raised."""
    outcomes: list[Any] = [None] * len(work)
    start = threading.Barrier(len(work))

    def run(index: int, function: Callable[[], Any]) -> None:
        try:
            start.wait(LONG)
            outcomes[index] = function()
        except BaseException as error:
            outcomes[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def run_apart(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a script in a process of its own, on the tests' database.

    It finds Django set up, its arguments in `arguments`, and `say(text)` to write a line that
    the test reads from `process.stdout`.
    """
    environment = {**os.environ, "DATABASE_URL": _url(), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), *arguments],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


ROOT = Path(__file__).resolve().parents[2]
PREAMBLE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
import django
from django.conf import settings
settings.NEXO = {**settings.NEXO, "LEASE_SECONDS": float(sys.argv[1])}
django.setup()
arguments = sys.argv[2:]
def say(text):
    print(text, flush=True)
"""


def _url() -> str:
    config = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{config['NAME']}"
    scheme = {"postgresql": "postgres"}.get(connection.vendor, connection.vendor)
    user = quote(config["USER"]) + (f":{quote(config['PASSWORD'])}" if config["PASSWORD"] else "")
    return f"{scheme}://{user}@{config['HOST']}:{config['PORT']}/{config['NAME']}"


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and give what it gave."""
    until = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)
    return found


def dump() -> list[Any]:
    """Give every row of the chats, but for the moment that a renewal may move."""
    rows = []
    for table in (Chat, Turn, Row, ToolCallRow, Model):
        rows += [list(table._base_manager.order_by("pk").values())]
    for chat in rows[0]:
        del chat["lease_expires_at"]
    return rows


def contents(messages: Sequence[Message]) -> list[str | None]:
    """Give the texts of messages."""
    return [message.content for message in messages]
