"""What the lines of a log and of the file about its turns mean, put together as a chat's contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nexo_django.messages import SYSTEM, Message, Usage
from nexo_django.sanitize import clean_message
from nexo_django.stores.base import DONE, RUNNING, STOPPED, TURN_STATUSES
from nexo_django.stores.contents import Contents, Turn
from nexo_django.stores.jsonl_file import JSONLFile, Stretch
from nexo_django.stores.local_decisions import parsed
from nexo_django.stores.parts import Part

# Beyond the end of any log.
NOWHERE = 2**63 - 1


def read_message(data: Mapping[str, Any]) -> Message:
    """Read a line of a log."""
    return clean_message(Message.from_dict(data))


def read_part(stretch: Stretch[Message]) -> Part:
    """Give what a stretch of a log holds, without the system's messages."""
    said = [value for value in stretch.values if value is not None and value.role != SYSTEM]
    made = [v for v in stretch.values[: stretch.made] if v is not None and v.role != SYSTEM]
    return Part(said, len(made), stretch.parent)


def read_note(data: dict[str, Any]) -> dict[str, Any]:
    """Read a line about a turn; raises for one that was not written here."""
    texts = [data.get(name, "") for name in ("error", "fingerprint", "started")]
    numbers = [data.get(name, 0) for name in ("turn", "position", "at", "part")]
    texts += [data[name] for name in ("key",) if data.get(name) is not None]
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int) for n in numbers):
        raise ValueError("This is no line about a turn.")
    if data.get("status", RUNNING) not in TURN_STATUSES or "turn" not in data:
        raise ValueError("This is no line about a turn.")
    note = dict(data)
    if "marks" in data:
        note["marks"] = {(str(call_id), int(at)) for call_id, at in data["marks"]}
    if "waits" in data:
        note["waits"] = parsed(data["waits"])
    if data.get("usage") is not None:
        note["usage"] = Usage.from_dict(data["usage"])
    if data.get("reply") is not None:
        note["reply"] = Message.from_dict(data["reply"])
    return note


def read_contents(
    messages: Iterable[Message], notes: list[dict[str, Any]], log: JSONLFile[Message]
) -> Contents:
    """Put together what a log and the lines about its turns say."""
    contents = Contents()
    pairs = [(at, m) for at, m in zip(log.places, messages, strict=True) if m.role != SYSTEM]
    said = [(at, contents.put(message)) for at, message in pairs]
    turns: dict[int, Turn] = {}
    begins: dict[int, int] = {}
    for note in notes:
        number = note["turn"]
        begins[number] = note.get("at", begins.get(number, -1))
        if "fingerprint" in note:
            turns[number] = Turn(number, note.get("key"), note["fingerprint"])
        _apply(turns.setdefault(number, Turn(number)), note, log.number)
    contents.turns = [turns[number] for number in sorted(turns)]
    if contents.turns and begins[contents.turns[-1].number] >= log.size:
        number = contents.turns.pop().number
        contents.void = None if begins[number] == NOWHERE else number
    if contents.turns and (begin := begins[contents.turns[-1].number]) >= 0:
        contents.start = next((m.position for at, m in said if at >= begin), None)
    _infer(contents)
    return contents


def _apply(turn: Turn, note: dict[str, Any], part: int) -> None:
    if "marks" in note and note.get("part", 0) <= part:
        turn.started, turn.waits = set(note["marks"]), note.get("waits", {})
    elif "waits" in note and "marks" not in note:
        turn.waits = note["waits"]
    if "started" in note:
        turn.started.add((note["started"], note.get("position", 0)))
    if "status" in note:
        turn.status, turn.error = note["status"], note.get("error", "")
        turn.usage, turn.reply = note.get("usage", Usage()), note.get("reply")


def _infer(contents: Contents) -> None:
    """Add what the log itself tells of its last turn."""
    if not contents.messages:
        return
    if not contents.turns:
        # Another program wrote the log, and nobody knows which calls it started.
        started = {(call.id, place) for call, place in contents.slots}
        contents.turns.append(Turn(1, status=STOPPED, started=started))
    last = contents.turns[-1]
    if contents.ended() and last.status in (RUNNING, STOPPED):
        last.status, last.reply, last.usage = DONE, contents.answer(), contents.spent()
