"""Sessions in files: a message a line, as Brute writes them, with the turns in a file beside.

`<log>.turns` holds what Brute's reader would not understand: keys, statuses, started calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from nexo_django import conf
from nexo_django.exceptions import SessionBusy, StoreFailed
from nexo_django.messages import SYSTEM, Message
from nexo_django.stores import jsonl_lines
from nexo_django.stores.attached import AttachmentFiles
from nexo_django.stores.base import DONE, RUNNING, TurnRequest
from nexo_django.stores.contents import Contents, Turn, counted
from nexo_django.stores.files import FolderFiles
from nexo_django.stores.jsonl_file import JSONLFile
from nexo_django.stores.jsonl_lock import FileLock
from nexo_django.stores.local import LocalChat, continued, missing, started
from nexo_django.stores.local_decisions import DecisionFile, Wait, written
from nexo_django.stores.local_turn import LocalTurn
from nexo_django.stores.outputs import OutputFiles
from nexo_django.stores.parts import Part

OUTPUTS, ATTACHMENTS, FILES = "outputs", "attachments", "files"
DECISIONS = "decisions"


class JSONLStore:
    """A directory with a log for each chat; several processes of one machine may share it."""

    durable = True

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def chat(self, agent_name: str, instance_id: str) -> JSONLChat:
        """Give the handle of a chat."""
        pair = (agent_name, instance_id)
        return JSONLChat(self.directory / file_name(*pair), pair)

    def purge_outputs(self, now: datetime, batch_size: int) -> int:
        """Delete the outputs of tools that expired by then, and count them."""
        found = self.directory.glob(f"*.jsonl.{OUTPUTS}")
        try:
            return sum(OutputFiles(directory).purge(now.timestamp()) for directory in found)
        except OSError as error:
            raise StoreFailed(f"{self.directory} could not be purged: {error}.") from error


class JSONLChat(LocalChat):
    """The chat of one agent and instance, in a log of its own."""

    def __init__(self, path: str | os.PathLike[str], name: tuple[str, str] = ("", "")) -> None:
        # A replacement must reach the file, not a link to it.
        self.path = Path(os.path.realpath(path))
        self.name = name

    def hold(self, wait: float, *, make: bool) -> JSONLHold:
        """Take the lease, or raise SessionBusy after `wait` seconds."""
        if not make and not self.exists():
            raise missing(*self.name)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFailed(f"{self.path.parent} could not be made: {error}.") from error
        lock = FileLock(beside(self.path, "lock"))
        lock.acquire(wait)
        try:
            return JSONLHold(self.path, lock)
        except BaseException:
            lock.release()
            raise

    def read(self) -> Contents:
        """Give what is stored now."""
        log, turns = _log(self.path), _turns(self.path)
        notes = turns.read()
        if any("part" in note and "waits" in note for note in notes):
            # Which of them tells where the calls that wait are now.
            log.number = log.replaced()
        return jsonl_lines.read_contents(log.read(), notes, log)

    def exists(self) -> bool:
        """Whether the chat is stored: a log that nothing was written to is none."""
        return stored(self.path)

    @property
    def files(self) -> AttachmentFiles:
        """Where the chat's attached files are kept."""
        return AttachmentFiles(beside(self.path, ATTACHMENTS))

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""
        return [jsonl_lines.read_part(stretch) for stretch in _log(self.path).stretches()]

    @property
    def decisions(self) -> DecisionFile:
        """Where decisions on the chat's calls are kept."""
        return DecisionFile(beside(self.path, DECISIONS))

    def cancel(self) -> bool:
        """Ask the running turn to stop; False when none runs."""
        turns = self.read().turns
        if not turns or turns[-1].status != RUNNING or not self._busy():
            return False
        path, temporary = beside(self.path, "cancel"), beside(self.path, f"cancel.{os.getpid()}")
        try:
            temporary.write_text(str(turns[-1].number))
            temporary.replace(path)
        except OSError as error:
            raise StoreFailed(f"{path} could not be written: {error}.") from error
        return True

    def delete(self) -> dict[str, int]:
        """Delete the log with all that is beside it, and count what went."""
        if not self.exists():
            return {}
        lock = FileLock(beside(self.path, "lock"))
        lock.acquire(0)
        try:
            gone = counted(list(self.history()), len(self.read().turns))
            # The log and its lock go last: while the log is there, delete() can be called again.
            last = [self.path, beside(self.path, "lock")]
            OutputFiles(beside(self.path, OUTPUTS)).delete()
            self.files.delete()
            FolderFiles(beside(self.path, FILES)).delete()
            mine = [path for path in self.path.parent.iterdir() if _belongs(path, self.path)]
            for path in [*(p for p in mine if p not in last), *last]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreFailed(f"{self.path} could not be deleted: {error}.") from error
        finally:
            lock.release()
        return gone

    def _busy(self) -> bool:
        lock = FileLock(beside(self.path, "lock"))
        try:
            lock.acquire(0)
        except SessionBusy:
            return True
        lock.release()
        return False


class PathLog(JSONLChat):
    """The log of a pipeline without a session: `SessionLog(path=...)` opens it for each turn."""

    def begin(self, request: TurnRequest | list[Message]) -> LocalTurn:
        """Take the lease, commit the messages a pipeline was started with, and give the turn.

        Without a message but the system's: take up the unsettled turn, or raise
        NothingToContinue.
        """
        if isinstance(request, TurnRequest):
            return super().begin(request)
        prompts = [message for message in request if message.role != SYSTEM]
        held = self.hold(conf.get("TURN_WAIT"), make=bool(prompts))
        try:
            system = next((message for message in request if message.role == SYSTEM), None)
            held.contents.system = system
            return started(held, prompts) if prompts else continued(held, TurnRequest(None))
        except BaseException:
            held.release()
            raise


class JSONLHold:
    """The lease of a log: its contents, and its files, open for writing."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path, self._owner = path, lock
        self.lock = threading.RLock()
        self.outputs = OutputFiles(beside(path, OUTPUTS))
        self.attached = AttachmentFiles(beside(path, ATTACHMENTS))
        self.files = FolderFiles(beside(path, FILES))
        self.decisions = DecisionFile(beside(path, DECISIONS))
        self._log, self._turns = _log(path), _turns(path)
        try:
            self._clear()
            messages, notes = self._log.open(), self._turns.open()
            self.contents = jsonl_lines.read_contents(messages, notes, self._log)
            self._settle(notes)
        except BaseException:
            self.release()
            raise

    def owned(self) -> bool:
        """Whether the lease is still held."""
        return self._owner.held()

    def begin(self, turn: Turn, prompts: list[Message]) -> None:
        """Write a new turn, then its prompt: a turn without one is void to the next reader."""
        note = {"turn": turn.number, "key": turn.key, "fingerprint": turn.fingerprint}
        self._turns.append({**note, "at": self._log.end()})
        self._log.append(*(message.to_dict() for message in prompts))

    def message(self, message: Message) -> None:
        """Write a message."""
        self._log.append(message.to_dict())

    def turn(self, turn: Turn) -> None:
        """Write a turn's status; its reply too if a key may ask for it."""
        note: dict[str, Any] = {"turn": turn.number, "status": turn.status, "error": turn.error}
        if turn.waits:
            note["waits"] = written(turn.waits)
        if turn.key is not None and turn.status != RUNNING:
            note["usage"] = turn.usage.to_dict()
            note["reply"] = None if turn.reply is None else turn.reply.to_dict()
        try:
            self._turns.append(note)
        except StoreFailed:
            # The log itself tells the next owner of a turn that was answered.
            if turn.status != DONE or not self.contents.ended():
                raise

    def started(self, turn: Turn, call: tuple[str, int]) -> None:
        """Write that a call starts to run."""
        self._turns.append({"turn": turn.number, "started": call[0], "position": call[1]})

    def cancelled(self, number: int) -> bool:
        """Whether that turn was asked to stop."""
        with suppress(OSError):
            return beside(self.path, "cancel").read_text() == str(number)
        return False

    @property
    def made(self) -> int:
        """How many of the messages a compaction left, or its undoing brought back."""
        return self._log.made

    @property
    def index(self) -> int:
        """Which of the parts the contents are of."""
        return self._log.index

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""
        return [jsonl_lines.read_part(stretch) for stretch in self._log.stretches()]

    def replace(
        self, part: Part, marks: set[tuple[str, int]], waits: dict[tuple[str, int], Wait]
    ) -> None:
        """Begin a part; the replaced log is archived beside it."""
        if self.contents.turns:
            # The prompt is there, wherever the new log ends. The marks hold from that
            # replacement on: after a kill before it, those before still do.
            note: dict[str, Any] = {"turn": self.contents.turns[-1].number, "at": -1}
            note |= {"part": self._log.number + 1, "marks": sorted(marks)}
            self._turns.append({**note, "waits": written(waits)} if waits else note)
        records = [message.to_dict() for message in part.messages]
        self._log.replace(records, archive=True, parent=part.parent)

    def release(self) -> None:
        """Give the lease back."""
        with self.lock:
            self._log.close()
            self._turns.close()
            self._owner.release()

    def _clear(self) -> None:
        """Remove what tells of a log that was deleted, and of a turn that is over."""
        try:
            beside(self.path, "cancel").unlink(missing_ok=True)
            if not stored(self.path):
                for left in ("turns", DECISIONS):
                    beside(self.path, left).unlink(missing_ok=True)
                self.outputs.delete()
                self.attached.delete()
                self.files.delete()
        except OSError as error:
            raise StoreFailed(f"{self.path} could not be opened: {error}.") from error

    def _settle(self, notes: list[dict[str, Any]]) -> None:
        """Write what was inferred of the last turn: later messages would hide it."""
        if self.contents.void is not None:
            # Or it would have begun after all, as soon as the log is longer.
            self._turns.append({"turn": self.contents.void, "at": jsonl_lines.NOWHERE})
        last = self.contents.turns[-1] if self.contents.turns else None
        if last is None:
            return
        told = [note for note in notes if note["turn"] == last.number]
        if not told:
            for mark in last.started:
                self.started(last, mark)
        if not told or (last.status == DONE and all(n.get("status") != DONE for n in told)):
            self.turn(last)


def stored(path: Path) -> bool:
    """Whether there is a log with something in it."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def beside(path: Path, what: str) -> Path:
    """Give the path of a file that belongs to a log."""
    return path.with_name(f"{path.name}.{what}")


def file_name(agent_name: str, instance_id: str) -> str:
    """Give the name of a chat's log: readable where it can be, and never another chat's."""
    digest = hashlib.sha256(json.dumps([agent_name, instance_id]).encode()).hexdigest()
    parts = (agent_name or "-", instance_id or "-")
    shown = [re.sub(r"[^A-Za-z0-9_-]+", "-", part)[:40] for part in parts]
    return f"{'.'.join(shown)}.{digest[:32]}.jsonl"


def _log(path: Path) -> JSONLFile[Message]:
    return JSONLFile(path, jsonl_lines.read_message)


def _turns(path: Path) -> JSONLFile[dict[str, Any]]:
    return JSONLFile(beside(path, "turns"), jsonl_lines.read_note)


def _belongs(path: Path, log: Path) -> bool:
    return path.name.startswith(f"{log.name}.")
