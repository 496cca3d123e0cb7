"""Files of earlier turns give way to a note, in the view only, and only when it is compacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nexo_django import Message, Session
from nexo_django.compaction import CompactionPipeline, SlidingWindow, Summarize, ToolResults
from nexo_django.messages import ASSISTANT, USER
from nexo_django.transcript import turns
from tests.files import png
from tests.support import Script, make_agent

IMAGE = {
    "type": "attachment",
    "id": "x",
    "name": "cat.png",
    "media_type": "image/png",
    "bytes": 120_000,
    "sha256": "0" * 64,
    "width": 1000,
    "height": 1000,
}
OUTPUT = {"type": "output", "name": "City", "schema": "{}"}
NOTE = {"type": "text", "text": "[image cat.png, 120 kB, no longer shown]"}


def conversation(count: int) -> list[Message]:
    messages = []
    for number in range(count):
        parts = ({**IMAGE, "id": str(number)}, OUTPUT)
        messages += [
            Message(USER, f"Look {number}", parts=parts, position=2 * number + 1),
            Message(ASSISTANT, f"Seen {number}", position=2 * number + 2),
        ]
    return messages


def shown(messages: list[Message]) -> list[str]:
    prompts = [m for m in messages if m.role == USER]
    return ["note" if m.parts and m.parts[0] == NOTE else "image" for m in prompts]


@pytest.mark.parametrize(
    ("keep_turns", "left"),
    [
        (0, ["note", "note", "note", "image"]),
        (1, ["note", "note", "note", "image"]),
        (2, ["note", "note", "image", "image"]),
        (9, ["image", "image", "image", "image"]),
    ],
)
def test_the_newest_stay(keep_turns: int, left: list[str]) -> None:
    messages = conversation(4)
    compactor = CompactionPipeline().use(ToolResults, keep_turns=keep_turns)
    done = compactor.attempt(messages, target=1)
    assert shown(done.messages) == left
    # It is still the same prompts, and the rest of their parts.
    assert len(turns(done.messages)) == 4
    assert [m.content for m in done.messages] == [m.content for m in messages]
    assert all(m.parts[1] == OUTPUT for m in done.messages if m.parts)
    assert messages == conversation(4)


def test_no_more_than_is_needed_goes_and_the_oldest_first() -> None:
    messages = conversation(5)
    done = CompactionPipeline().use(ToolResults).attempt(messages, target=4500)
    assert shown(done.messages) == ["note", "note", "image", "image", "image"]
    assert done.reached
    assert done.layers == ("tool_results",)


def test_a_summary_is_told_of_them() -> None:
    heard: list[str] = []

    def model(env: Any) -> None:
        heard.append(env.messages[-1].content)
        env.messages.append(Message(ASSISTANT, "A cat was seen."))

    compactor = CompactionPipeline().use(SlidingWindow).run(Summarize(model))
    done = compactor.attempt(conversation(4), target=1800)
    assert done.changed
    assert "[image cat.png, 120 kB]" in heard[0]
    assert "[asks for JSON: City]" in heard[0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store", ["database", "memory", "jsonl"])
def test_in_a_session(store: str, settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = str(tmp_path / "media")
    named = f"jsonl:{tmp_path}/logs" if store == "jsonl" else store
    settings.NEXO = {"SESSION_STORE": named}
    script = Script()
    made = Session.resume(make_agent(script, name="Seeing", context_window=20_000), "compacts")
    for number in range(6):
        made.prompt(f"Look {number}", attachments=[("cat.png", png(1200, 1200 + number))])
    before = made.messages
    change = made.compact()
    assert change is not None
    assert change.layers == ("tool_results",)
    assert change.removed == change.added == ()
    assert len(change.rewritten) == 4
    view = made.messages
    assert [m.content for m in view] == [m.content for m in before]
    notes = [m.parts[0]["text"] for m in view if m.parts and m.parts[0]["type"] == "text"]
    assert notes[0].endswith("no longer shown]")
    assert len(notes) == 4
    # The originals stay: in the history, by their ids, and after undoing.
    assert [m.parts for m in made.history()] == [m.parts for m in before]
    for message in made.history():
        for part in message.parts or ():
            assert made.attachment(part["id"]) is not None
    made.prompt("And now?")
    assert [m.parts for m in script.requests[-1]][: len(view)] == [m.parts for m in view]
    assert made.undo_compaction()
    assert [m.parts for m in made.messages][: len(before)] == [m.parts for m in before]
    made.delete()
