"""What the tests of rows share."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from nexo_django.messages import ASSISTANT, TOOL, USER, Message, ToolCall
from nexo_django.models import Chat
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


def contents(messages: Sequence[Message]) -> list[str | None]:
    """Give the texts of messages."""
    return [message.content for message in messages]
