"""Watching a turn: stored events from the rows, in order and with ids, and live text between.

A watcher has no queue. It remembers how far it was told, so a slow one gets more at once, and
any process can go on from the last id that came.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from nexo_django import events
from nexo_django.connections import in_test_transaction, release, release_thread
from nexo_django.contrib import envelope
from nexo_django.contrib.live import Draft, topics
from nexo_django.contrib.pulse import pulse
from nexo_django.contrib.reading import Cursor, Source, State
from nexo_django.messages import TOOL
from nexo_django.pool import in_test_thread

HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2000
# Pieces that come faster are sent together.
PACE_SECONDS = 0.03
READERS = 4
# How often to look for a turn that is in a queue, and for how long.
POLL_SECONDS, QUEUE_SECONDS = 0.3, 300.0


@dataclass(frozen=True)
class Sent:
    """An event on its way to a client; what has an id is stored."""

    type: str
    payload: dict[str, Any]
    id: str = ""

    def encode(self) -> bytes:
        """Give the event in the format of text/event-stream."""
        data = json.dumps(self.payload, ensure_ascii=False)
        mark = f"id: {self.id}\n" if self.id else ""
        return f"event: {self.type}\n{mark}data: {data}\n\n".encode(errors="replace")


class Watch:
    """What one client was told of a turn, and what it is to be told next."""

    def __init__(
        self,
        source: Source,
        turn: int,
        cursor: Cursor,
        wake: Callable[[], object],
        outcome: Future[Any] | None = None,
    ) -> None:
        self.source, self.turn, self.cursor, self.wake = source, turn, cursor, wake
        self.outcome = outcome
        self.key = (source.alias, source.chat_id)
        self.topic = topics.watch(self.key, wake)
        self.moved = 0
        # Told without a gap up to here; told beyond a gap; the last that was no result.
        self.position, self.ahead, self.last = cursor.position, set[int](), 0
        self.draft: Draft | None = None
        self.pieces, self.offsets = [0, 0], [0, 0]
        self.notes = len(self.topic.notes)
        self.ended = False

    def close(self) -> None:
        """Watch no more."""
        topics.leave(self.key, self.wake)

    @property
    def behind(self) -> bool:
        """Whether there may be rows that were not read."""
        return self.topic.state()[0] != self.moved

    def rows(self) -> list[Sent]:
        """Give what was stored since; asks the database."""
        try:
            self.moved = self.topic.state()[0]
            # First, so that a turn which has ended by then has all its rows by now.
            state = self.source.state(self.turn)
            if state is None:
                self.ended = True
                return [Sent("failed", {"turn": self.turn, "error": envelope.told("not_found")})]
            told = [sent for row in self._unread() for sent in self._row(row)]
            return [*told, *(self._end(state) if state.settled else ())]
        finally:
            release(self.source.alias)

    def text(self) -> list[Sent]:
        """Give what is being said, if all rows before it were told."""
        moved, draft = self.topic.state()
        if moved != self.moved:
            return []
        notes = self.topic.notes[self.notes :]
        self.notes += len(notes)
        told = [Sent(note.type, note.payload) for note in notes]
        if self.last >= draft.at:
            # Its message is stored already.
            return told
        if draft is not self.draft:
            self.draft, self.pieces, self.offsets = draft, [0, 0], [0, 0]
        kinds = ((events.REASONING, draft.reasoning), (events.CONTENT, draft.content))
        for n, (kind, pieces) in enumerate(kinds):
            new = pieces[self.pieces[n] :]
            if text := "".join(new):
                told.append(Sent(kind, {"text": text, "offset": self.offsets[n]}))
            self.pieces[n] += len(new)
            self.offsets[n] += len(text)
        return told

    def _unread(self) -> Iterator[dict[str, Any]]:
        at, more = self.position, True
        while more:
            found, at, more = self.source.after(at, self.turn)
            yield from (row for row in found if self._is_new(row["position"]))

    def _is_new(self, at: int) -> bool:
        return at > self.position and at not in self.ahead

    def _row(self, row: dict[str, Any]) -> Iterator[Sent]:
        at = row["position"]
        if row["role"] == TOOL:
            return self._result(row, at)
        self.position = self.last = at
        self.ahead.clear()
        calls = row.get("tool_calls", ())
        told = [("message", row), *((events.TOOL_CALL, call) for call in calls)]
        # The id comes with the last of them: whoever has it has all.
        return (
            Sent(kind, payload, str(at) if n == len(calls) else "")
            for n, (kind, payload) in enumerate(told)
        )

    def _result(self, row: dict[str, Any], at: int) -> Iterator[Sent]:
        self.ahead.add(at)
        before = self.position
        while self.position + 1 in self.ahead:
            self.position += 1
            self.ahead.discard(self.position)
        payload = {
            "id": row["tool_call_id"],
            **{name: row[name] for name in ("name", "content", "is_error", "position", "turn")},
        }
        yield Sent(events.TOOL_RESULT, payload, str(self.position) * (self.position > before))

    def _end(self, state: State) -> Iterator[Sent]:
        self.ended = True
        kind, payload = self.source.end(state)
        if kind == "failed":
            payload["error"] |= self._asked_to_wait()
        for call in payload.get("pending", ()):
            asked = events.QUESTION if call["kind"] == "question" else events.APPROVAL_REQUESTED
            yield Sent(asked, call)
        yield Sent(kind, payload, str(Cursor(self.position, state.turn, state.status)))

    def _asked_to_wait(self) -> dict[str, Any]:
        """Give what the provider asked for, which no row keeps."""
        error = self.outcome.result() if self.outcome and self.outcome.done() else None
        described = envelope.described(error)[1] if isinstance(error, Exception) else {}
        return {k: v for k, v in described.items() if k == "retry_after"}


class _Wake:
    """Wakes a coroutine from any thread, once for all that came since it looked."""

    def __init__(self) -> None:
        self.loop, self.event = asyncio.get_running_loop(), asyncio.Event()
        self.called = False

    def __call__(self) -> None:
        if self.called:
            return
        self.called = True
        try:
            self.loop.call_soon_threadsafe(self.event.set)
        except RuntimeError:
            # The loop has ended, and the watcher with it.
            return

    def clear(self) -> None:
        self.event.clear()
        self.called = False

    async def wait(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.event.wait(), seconds)
        except TimeoutError:
            return False
        return True


# None as long as the turn has not begun: a worker takes it from its queue.
Open = Callable[[Callable[[], object]], Watch | None]
Wrap = Callable[[Sent], bytes]
NOT_BEGUN = "not_begun"
HEARTBEAT = b": \n\n"
OPENING = f"retry: {RETRY_MILLISECONDS}\n\n".encode()


class _Pause:
    """How long a queue takes."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() - self.began > QUEUE_SECONDS

    def heartbeat_is_due(self) -> bool:
        due = time.monotonic() - self.told > HEARTBEAT_SECONDS
        self.told = time.monotonic() if due else self.told
        return due

    def end(self) -> Sent:
        return Sent("failed", {"turn": None, "status": "queued", "error": envelope.told(NOT_BEGUN)})


def watch(open: Open) -> Iterator[Sent | None]:
    """Give the events of a watch as they come, and None where a heartbeat is due."""
    # What the request's own queries used is not needed while it streams.
    release_thread()
    wake = threading.Event()
    pause = _Pause()
    while (watching := open(wake.set)) is None:
        if pause.over:
            yield pause.end()
            return
        if pause.heartbeat_is_due():
            yield None
        time.sleep(POLL_SECONDS)
    try:
        _beat()
        while not watching.ended:
            wake.clear()
            told = watching.rows() if watching.behind else watching.text()
            yield from told
            if told and not watching.ended:
                time.sleep(PACE_SECONDS)
            elif not told and not watching.behind and not wake.wait(HEARTBEAT_SECONDS):
                yield None
    finally:
        watching.close()


async def awatch(open: Open) -> AsyncIterator[Sent | None]:
    """See watch(); the database is asked in a few threads that all watchers share."""
    await sync_to_async(release_thread, thread_sensitive=True)()
    read = await _reader()
    wake, pause = _Wake(), _Pause()
    while (watching := await read(partial(open, wake))) is None:
        if pause.over:
            yield pause.end()
            return
        if pause.heartbeat_is_due():
            yield None
        await asyncio.sleep(POLL_SECONDS)
    try:
        _beat()
        while not watching.ended:
            wake.clear()
            told = await read(watching.rows) if watching.behind else watching.text()
            for sent in told:
                yield sent
            if told and not watching.ended:
                await asyncio.sleep(PACE_SECONDS)
            elif not told and not watching.behind and not await wake.wait(HEARTBEAT_SECONDS):
                yield None
    finally:
        watching.close()


def stream(open: Open) -> Iterator[bytes]:
    """Give the body of an event stream, for WSGI."""
    yield OPENING
    for sent in watch(open):
        yield HEARTBEAT if sent is None else sent.encode()


async def astream(open: Open) -> AsyncIterator[bytes]:
    """See stream(); for ASGI."""
    yield OPENING
    told = awatch(open)
    try:
        async for sent in told:
            yield HEARTBEAT if sent is None else sent.encode()
    finally:
        await told.aclose()  # type: ignore[attr-defined]


def _beat() -> None:
    if not in_test_transaction():
        pulse.start()


async def _reader() -> Callable[[Callable[[], Any]], Any]:
    if await in_test_thread():
        return lambda function: sync_to_async(function, thread_sensitive=True)()
    loop = asyncio.get_running_loop()

    async def read(function: Callable[[], Any]) -> Any:
        return await loop.run_in_executor(_readers(), function)

    return read


_executor: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _readers() -> ThreadPoolExecutor:
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(READERS, thread_name_prefix="nexo-watch")
        return _executor


def _forget() -> None:
    """Drop the parent's threads, which do not exist in a forked child."""
    global _executor, _lock
    _executor, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
