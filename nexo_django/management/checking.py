"""Whether stored chats could be replayed to a provider, and the repair of those that couldn't."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from nexo_django import transcript
from nexo_django.leases import Lease
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, Message
from nexo_django.models import tables
from nexo_django.stores import rows
from nexo_django.stores.database_turn import DatabaseTurn
from nexo_django.stores.repair import repair


def problem(chat: Any, alias: str) -> str | None:
    """Say what is wrong with a chat's history, or with the view of it; None when nothing is.

    Calls that an unfinished turn left open are not wrong: the next prompt closes them, or
    `continue_turn()` runs them. Reads a turn at a time, so a chat may be of any length.
    """
    messages = tables().message.objects.using(alias)
    pending: list[Message] = []
    for turn in _turns(rows.history(chat.pk, messages)):
        if pending and (wrong := _wrong(pending)):
            return wrong
        pending = turn
    if chat.open_turn is not None:
        pending += map(transcript.interrupted_result, transcript.open_calls(pending))
    if pending and (wrong := _wrong(pending)):
        return wrong
    return None if chat.current_compaction is None else _wrong_view(chat, messages)


def mend(chat: Any, alias: str) -> bool:
    """Store a result for each call that has none, as the next prompt would.

    False where a turn runs, or there never was one. What an unfinished turn left open stays
    open: it is that turn's to finish.
    """
    with _turn(chat, alias) as turn:
        if turn is None:
            return False
        chat.refresh_from_db(using=alias)
        chat.current_compaction = None
        loaded = rows.view(chat, tables().message.objects.using(alias))
        if chat.open_turn is not None:
            loaded.messages = loaded.messages[: _last_step(loaded.messages)]
        repair(turn, loaded, keep_open=False)
        return True


@contextmanager
def _turn(chat: Any, alias: str) -> Iterator[DatabaseTurn | None]:
    """Hold the chat's lease, and write as its last turn; None where that can't be."""
    found = tables()
    last = found.turn._base_manager.using(alias).filter(chat=chat).order_by("-number").first()
    lease = Lease(found.chat, alias, chat.pk)
    if last is None or not lease.claim({}):
        yield None
        return
    turn = DatabaseTurn(found, alias, last, lease)
    try:
        yield turn
    finally:
        turn.close()


def _turns(history: Iterable[Message]) -> Iterator[list[Message]]:
    """Part a history before each prompt: what is wrong is wrong within a turn."""
    turn: list[Message] = []
    for message in history:
        if transcript.is_prompt(message) and any(m.role != SYSTEM for m in turn):
            yield turn
            turn = []
        turn.append(message)
    if turn:
        yield turn


def _wrong(turn: list[Message]) -> str | None:
    found = transcript.problem(transcript.sendable(turn))
    return found and f"in the turn from position {turn[0].position}: {found}"


def _wrong_view(chat: Any, messages: Any) -> str | None:
    view = rows.view(chat, messages).values()
    if chat.open_turn is not None:
        view += map(transcript.interrupted_result, transcript.open_calls(view))
    found = transcript.problem(transcript.sendable(view))
    return found and f"in the view: {found}"


def _last_step(messages: list[Any]) -> int:
    """Give the index where the last step begins, or how many messages there are."""
    end = len(messages)
    while end and messages[end - 1].role == TOOL:
        end -= 1
    return end - 1 if end and messages[end - 1].role == ASSISTANT else len(messages)
