"""Running what other people wrote, so that whatever it does is a result and nothing is left over."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connections

from nexo_django.exceptions import ABORTS, ToolError, is_abort
from nexo_django.messages import ToolCall
from nexo_django.pipeline import Env
from nexo_django.sanitize import described
from nexo_django.tools.results import ToolResult, as_result

logger = logging.getLogger(__name__)


def attempt(env: Env, call: ToolCall, work: Callable[[], Any]) -> ToolResult:
    """Give what `work` returns as a result with its text made, or its error as one.

    Signals to stop pass through; of our own errors only those that this turn would meet
    again at a checkpoint: a session inside a tool may lose a lease that is not this turn's.
    A transaction that `work` left open is rolled back, and the result says so.
    """
    left: list[str] = []
    try:
        with _unwinding(left):
            result = as_result(work()).made()
    except ToolError as error:
        result = ToolResult(described(error), is_error=True)
    except CancelledError as error:
        # Of a task that the tool waited for: nothing cancels a turn in this way.
        result = _failed(call, error)
    except Exception as error:
        if isinstance(error, ABORTS):
            env.checkpoint(now=True)
        elif is_abort(error):
            raise
        result = _failed(call, error)
    return result if not left else _left_open(call, result, left)


def _failed(call: ToolCall, error: BaseException) -> ToolResult:
    logger.warning("tool=%s call=%s failed", call.name, call.id, exc_info=error)
    return ToolResult(f"Error: {type(error).__name__}: {described(error)}", is_error=True)


def _left_open(call: ToolCall, result: ToolResult, aliases: list[str]) -> ToolResult:
    text = (
        f"Error: the tool left a transaction open on {', '.join(map(repr, aliases))}; "
        f"it was rolled back, and what was written in it is lost."
    )
    logger.warning("tool=%s call=%s left a transaction open", call.name, call.id)
    return ToolResult(f"{result.text}\n{text}" if result.is_error else text, is_error=True)


@contextmanager
def _unwinding(left: list[str]) -> Iterator[None]:
    """Roll back what is begun inside and not ended; `left` gets the names of the databases."""
    before = {c.alias: _depth(c) for c in _connections()}
    autocommit = {c.alias: c.autocommit for c in _connections() if c.connection is not None}
    try:
        yield
    finally:
        for connection in _connections():
            depth = before.get(connection.alias, 0)
            usual = autocommit.get(connection.alias, connection.settings_dict["AUTOCOMMIT"])
            if _unwind(connection, depth, usual):
                left.append(connection.alias)


def _connections() -> list[Any]:
    return list(connections.all(initialized_only=True)) if settings.configured else []


def _depth(connection: Any) -> int:
    return len(connection.atomic_blocks)


def _unwind(connection: Any, depth: int, autocommit: bool) -> bool:
    opened = _depth(connection) > depth
    try:
        for block in reversed(connection.atomic_blocks[depth:]):
            block.__exit__(RuntimeError, RuntimeError(), None)
        if depth or connection.connection is None or connection.autocommit == autocommit:
            return opened
        connection.rollback()
        connection.set_autocommit(autocommit)
    except Exception:
        logger.warning("alias=%s could not be rolled back", connection.alias, exc_info=True)
        _discard(connection, depth)
    return True


def _discard(connection: Any, depth: int) -> None:
    """Give up a connection that can't be brought back; the next use opens another."""
    if depth:
        connection.needs_rollback = True
        return
    connection.atomic_blocks.clear()
    connection.savepoint_ids.clear()
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.needs_rollback = False
    connection.close()
