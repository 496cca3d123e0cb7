"""Sessions in files: their names, Brute's format, the turns beside, several processes, kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django import transcript
from nexo_django.exceptions import (
    LeaseLost,
    NothingToContinue,
    SessionBusy,
    SessionNotFound,
    StoreFailed,
)
from nexo_django.messages import ASSISTANT, SUMMARY, SYSTEM, TOOL, USER, Message, ToolCall, Usage
from nexo_django.stores.base import DONE, FAILED, RUNNING, TurnRequest
from nexo_django.stores.jsonl import JSONLChat, JSONLStore, PathLog, file_name
from tests.stores.changes import change

ROOT = Path(__file__).parents[2]
LONG = 120
KILLS = 20
# Opening a log writes to the disk; reading it does not.
OPENED = 13


def ask(text: str = "hello", **fields: Any) -> TurnRequest:
    return TurnRequest(Message(USER, text), **{"wait": 0, **fields})


def said(chat: JSONLChat) -> list[tuple[str, str | None]]:
    return [(m.role, m.content) for m in chat.history()]


def answered(chat: JSONLChat, text: str = "hello", answer: str = "hi", **fields: Any) -> None:
    turn = chat.begin(ask(text, **fields))
    turn.append(Message(ASSISTANT, answer))
    turn.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "log.jsonl"


@pytest.fixture
def chat(path: Path) -> JSONLChat:
    return JSONLChat(path)


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=()))] * 2), unique=True))
@settings(deadline=None)
def test_any_name_is_a_safe_file_of_its_own(pairs: list[tuple[str, str]]) -> None:
    names = [file_name(*pair) for pair in pairs]
    assert len({name.lower() for name in names}) == len(pairs)
    for name in names:
        assert name.isascii()
        assert len(name) <= 150
        assert not set(name) & set("/\\:\0 ")
        assert not name.startswith(".")


def test_nothing_is_written_outside_the_directory(tmp_path: Path) -> None:
    store = JSONLStore(tmp_path / "in")
    for name in ("../out", "/etc/x", "..", "a/b", "\ud800", "é" * 191):
        answered(store.chat("../Agent", name), name.replace("\ud800", "lone"))
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert len(list((tmp_path / "in").glob("*.jsonl"))) == 6
    assert (tmp_path / "in").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "in").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_the_log_is_in_brutes_format(chat: JSONLChat, path: Path) -> None:
    turn = chat.begin(ask("née", key="secret-key"))
    turn.set_system("Never stored.")
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall("c1", "look", {"at": [1]}),)))
    turn.start_call(ToolCall("c1", "look"))
    turn.append(Message(TOOL, "seen", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"role": "user", "content": "née"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "look", "arguments": {"at": [1]}}],
        },
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done"},
    ]


def test_a_log_of_another_program_is_taken_up(chat: JSONLChat, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(
        '{"role":"system","content":"old"}\n{"role":"user","content":"one"}\n'
        '{"role":"assistant","content":"1","tool_calls":[],"vendor":{"x":1}}'
    )
    turn = chat.begin(ask("two"))
    assert turn.number == 2
    assert [m.content for m in turn.messages] == ["one", "1", "two"]
    turn.append(Message(ASSISTANT, "2"))
    turn.close()
    assert '"vendor":{"x":1}' in path.read_text()
    assert '"content":"old"' in path.read_text()
    assert said(chat) == [(USER, "one"), (ASSISTANT, "1"), (USER, "two"), (ASSISTANT, "2")]


def test_calls_that_another_program_left_open_may_have_run(chat: JSONLChat, path: Path) -> None:
    path.parent.mkdir()
    call = {"id": "c1", "name": "pay", "arguments": {}}
    path.write_text(
        '{"role":"user","content":"pay"}\n'
        + json.dumps({"role": "assistant", "tool_calls": [call, {**call, "id": "c2"}]})
        + "\n"
    )
    for _ in range(2):
        turn = chat.begin(TurnRequest(None, wait=0))
        assert transcript.open_calls(turn.messages) == []
        assert [m.is_error for m in turn.messages if m.role == TOOL] == [True, True]
        turn.close()


def test_damage_in_the_middle_is_repaired_in_the_view(chat: JSONLChat, path: Path) -> None:
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall("c1", "look"),)))
    turn.append(Message(TOOL, "seen", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "broken", lines[3], ""]))
    turn = chat.begin(ask("again"))
    assert transcript.problem(turn.messages) is None
    assert [m.role for m in turn.messages] == [USER, ASSISTANT, TOOL, ASSISTANT, USER]
    turn.close()


def test_a_log_cut_at_any_byte_goes_on(chat: JSONLChat, path: Path) -> None:
    answered(chat, "first", key="1")
    turn = chat.begin(ask("second", key="2"))
    turn.append(Message(ASSISTANT, "née", tool_calls=(ToolCall("c1", "look"),)))
    turn.start_call(ToolCall("c1", "look"))
    turn.append(Message(TOOL, "seen", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    data, turns = path.read_bytes(), path.with_name("log.jsonl.turns").read_bytes()
    whole = list(chat.history())
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        path.with_name("log.jsonl.turns").write_bytes(turns)
        kept = list(chat.history())
        assert kept == whole[: len(kept)]
        assert len(kept) >= data[:cut].count(b"\n")
        if cut % OPENED:
            continue
        again = chat.begin(ask("third"))
        assert transcript.problem(again.messages) is None
        again.close()


def test_turns_cut_at_any_byte_lose_no_message(chat: JSONLChat, path: Path) -> None:
    beside = path.with_name("log.jsonl.turns")
    answered(chat, "first", key="1")
    answered(chat, "second", key="2")
    data, turns = path.read_bytes(), beside.read_bytes()
    for cut in range(len(turns) + 1):
        path.write_bytes(data)
        beside.write_bytes(turns[:cut])
        assert [m.content for m in chat.view()] == ["first", "hi", "second", "hi"]
        if cut % OPENED:
            continue
        again = chat.begin(ask("third"))
        assert [m.content for m in again.messages] == ["first", "hi", "second", "hi", "third"]
        again.close()


def test_a_turn_without_its_prompt_never_was(chat: JSONLChat, path: Path) -> None:
    answered(chat)
    data = path.read_bytes()
    chat.begin(ask("lost", key="k")).close()
    path.write_bytes(data)
    with pytest.raises(NothingToContinue):
        chat.begin(TurnRequest(None, wait=0))
    turn = chat.begin(ask("another", key="k"))
    assert turn.number == 2
    assert [m.content for m in turn.messages] == ["hello", "hi", "another"]
    turn.close()


def test_an_answer_in_the_log_is_enough(chat: JSONLChat, path: Path) -> None:
    turn = chat.begin(ask("one", key="k"))
    path.with_name("log.jsonl.turns").unlink()
    with pytest.raises(StoreFailed):
        turn.finish(FAILED)
    turn.append(Message(ASSISTANT, "1"))
    assert turn.status == DONE
    turn.finish(FAILED)
    turn.close()
    with pytest.raises(NothingToContinue):
        chat.begin(TurnRequest(None, wait=0))


def test_who_deletes_the_log_starts_afresh(chat: JSONLChat, path: Path) -> None:
    answered(chat, "one", key="k")
    path.unlink()
    assert not chat.exists()
    answered(chat, "two", key="k")
    assert said(chat) == [(USER, "two"), (ASSISTANT, "hi")]


def test_deleting_takes_everything_beside(chat: JSONLChat, path: Path) -> None:
    answered(chat, "one")
    turn = chat.begin(ask("two"))
    turn.compacted(change(turn.messages, turn.messages[-1]))
    turn.append(Message(ASSISTANT, "hi"))
    turn.close()
    path.write_bytes(path.read_bytes() + b"broken\n")
    answered(chat, "three")
    other = path.with_name("log.jsonl2")
    other.write_text("another's")
    assert len(list(path.parent.iterdir())) == 6
    assert chat.delete() == {"chats": 1, "turns": 3, "messages": 6, "tool_calls": 0}
    assert list(path.parent.iterdir()) == [other]
    assert chat.delete() == {}


def test_a_deleted_log_takes_nothing_more(chat: JSONLChat, path: Path) -> None:
    turn = chat.begin(ask())
    path.unlink()
    with pytest.raises(StoreFailed):
        turn.append(Message(ASSISTANT, "hi"))
    path.with_name("log.jsonl.lock").unlink()
    with pytest.raises(LeaseLost):
        turn.append(Message(ASSISTANT, "hi"))
    turn.close()


def test_compacting_keeps_the_history(chat: JSONLChat, path: Path) -> None:
    answered(chat, "one", "1")
    turn = chat.begin(ask("two", key="k"))
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall("c1", "look"),)))
    turn.append(Message(TOOL, "seen", tool_call_id="c1"))
    summary = Message(USER, "a summary", kind=SUMMARY, usage=Usage(input=7))
    told = change(chat.view(), summary, Message(USER, "two"), usage=Usage(input=7))
    assert turn.compacted(told) == chat.view() == [summary, Message(USER, "two")]
    assert turn.usage.input == 7
    turn.close()
    taken = chat.begin(ask("two", key="k"))
    assert taken.number == 2
    assert [m.content for m in taken.messages] == ["a summary", "two"]
    taken.compacted(change(taken.messages, summary, Message(USER, "two")))
    taken.append(Message(ASSISTANT, "2", usage=Usage(input=3)))
    taken.close()
    texts = ["one", "1", "two", None, "seen", "a summary", "2"]
    assert [m.content for m in chat.history()] == texts
    assert [m.position for m in chat.history()] == list(range(1, 8))
    assert chat.usage().input == 10
    assert chat.begin(ask("two", key="k")).status == DONE


def opened(chat: JSONLChat) -> list[str]:
    """Give the ids of the calls that a new owner of the turn may still run."""
    turn = chat.begin(TurnRequest(None, wait=0))
    turn.close()
    return [call.id for call in transcript.open_calls(turn.messages)]


def shorten(turn: Any, path: Path, *, fails: bool = False) -> None:
    """Leave the summary, the prompt and the last step; or the note of it alone, as a kill does."""
    prompt, *_, step = [m for m in JSONLChat(path).read().messages if m.role != TOOL]
    made = change(turn.messages, Message(USER, "so far", kind=SUMMARY), prompt, step)
    if not fails:
        turn.compacted(made)
        return
    before, temporary = path.read_bytes(), path.with_name(f"{path.name}.tmp")
    # In the way of the new log.
    temporary.mkdir()
    with pytest.raises(StoreFailed):
        turn.compacted(made)
    temporary.rmdir()
    assert path.read_bytes() == before


@pytest.mark.parametrize("begun", [False, True])
def test_a_replacement_that_did_not_come_about_changes_no_mark(
    chat: JSONLChat, path: Path, tmp_path: Path, begun: bool
) -> None:
    asked, turn = ToolCall("c1", "a"), chat.begin(ask())
    for _ in range(3):
        turn.append(Message(ASSISTANT, tool_calls=[asked]))
        turn.start_call(asked)
        turn.append(Message(TOOL, "done", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, tool_calls=[asked]))
    if begun:
        turn.start_call(asked)
    shorten(turn, path, fails=True)
    turn.close()
    killed = JSONLChat(tmp_path / "copy" / path.name)
    shutil.copytree(path.parent, killed.path.parent)
    assert opened(killed) == ([] if begun else ["c1"])
    # The next replacement has the number of the one before, and its own marks.
    turn = chat.maintain(0)
    shorten(turn, path)
    turn.close()
    assert opened(chat) == ([] if begun else ["c1"])


def test_a_replacement_that_did_not_come_about_marks_no_later_call(
    chat: JSONLChat, path: Path
) -> None:
    asked, turn = ToolCall("c1", "a"), chat.begin(ask())
    turn.append(Message(ASSISTANT, tool_calls=[asked]))
    turn.start_call(asked)
    shorten(turn, path, fails=True)
    turn.append(Message(TOOL, "done", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, tool_calls=[asked]))
    shorten(turn, path)
    turn.close()
    assert opened(chat) == ["c1"]


def test_a_full_disk_loses_nothing_acknowledged(path: Path) -> None:
    done = _python(FULL, path, check=True)
    assert done.stdout.splitlines() == ["StoreFailed", "StoreFailed"]
    chat = JSONLChat(path)
    assert said(chat)[:3] == [(USER, "hello"), (ASSISTANT, "hi"), (USER, "fits")]
    answered(chat, "still there?")
    assert said(chat)[-2:] == [(USER, "still there?"), (ASSISTANT, "hi")]


FULL = """
import resource, sys
from nexo_django.exceptions import StoreFailed
from nexo_django.messages import Message
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.jsonl import JSONLChat

chat = JSONLChat(sys.argv[1])
turn = chat.begin(TurnRequest(Message("user", "hello")))
turn.append(Message("assistant", "hi"))
turn.close()
turn = chat.begin(TurnRequest(Message("user", "fits"), key="k"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    turn.append(Message("assistant", "x" * 2000))
except StoreFailed as error:
    print(type(error).__name__)
turn.finish("failed", "StoreFailed")
turn.close()
try:
    chat.begin(TurnRequest(Message("user", "y" * 2000)))
except StoreFailed as error:
    print(type(error).__name__)
"""


def test_a_path_log_gives_the_history_first(path: Path) -> None:
    log = PathLog(path)
    turn = log.begin([Message(SYSTEM, "Be kind."), Message(USER, "one")])
    assert [m.content for m in turn.messages] == ["Be kind.", "one"]
    assert turn.append(Message(SYSTEM, "x")) == Message(SYSTEM, "x")
    turn.append(Message(ASSISTANT, "1"))
    turn.finish(DONE)
    turn.close()
    turn = log.begin([Message(USER, "two"), Message(USER, "and three")])
    assert [m.content for m in turn.messages] == ["one", "1", "two", "and three"]
    turn.close()
    assert said(log) == [(USER, "one"), (ASSISTANT, "1"), (USER, "two"), (USER, "and three")]


def test_a_path_log_without_a_message_goes_on(path: Path) -> None:
    log = PathLog(path)
    with pytest.raises(SessionNotFound):
        log.begin([])
    turn = log.begin([Message(USER, "one")])
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall("c1", "look"),)))
    turn.finish(FAILED, "RuntimeError")
    turn.close()
    turn = log.begin([Message(SYSTEM, "Be kind.")])
    assert [m.role for m in turn.messages] == [SYSTEM, USER, ASSISTANT]
    assert [c.id for c in transcript.open_calls(turn.messages)] == ["c1"]
    turn.append(Message(TOOL, "seen", tool_call_id="c1"))
    turn.append(Message(ASSISTANT, "done"))
    turn.close()
    with pytest.raises(NothingToContinue):
        log.begin([])


TALKER = """
import sys
from nexo_django.messages import Message
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.jsonl import JSONLChat

chat, name = JSONLChat(sys.argv[1]), sys.argv[2]
for n in range(15):
    turn = chat.begin(TurnRequest(Message("user", f"{name} {n}"), wait=100))
    turn.append(Message("assistant", f"answer to {name} {n}"))
    turn.close()
"""


def test_processes_never_interleave_their_turns(path: Path) -> None:
    talkers = [_start(TALKER, path, name) for name in ("a", "b")]
    for talker in talkers:
        _, errors = talker.communicate(timeout=LONG)
        assert talker.returncode == 0, errors
    texts = [m.content for m in JSONLChat(path).history()]
    assert texts[1::2] == [f"answer to {text}" for text in texts[::2]]
    for name in ("a", "b"):
        mine = [text for text in texts[::2] if str(text).startswith(name)]
        assert mine == [f"{name} {n}" for n in range(15)]


def test_another_process_sees_that_a_turn_runs_and_may_cancel_it(path: Path) -> None:
    with _start(RUNNER, path) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "running\n"
        chat = JSONLChat(path)
        with pytest.raises(SessionBusy):
            chat.begin(ask())
        with pytest.raises(SessionBusy):
            chat.delete()
        assert chat.read().turns[-1].status == RUNNING
        assert chat.cancel() is True
        assert runner.stdout.readline() == "cancelled\n"
        assert runner.wait(LONG) == 0
    assert chat.cancel() is False
    assert chat.begin(ask("x", key="k")).status == "cancelled"


RUNNER = """
import sys, time
from nexo_django.exceptions import TurnCancelled
from nexo_django.messages import Message
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.jsonl import JSONLChat

turn = JSONLChat(sys.argv[1]).begin(TurnRequest(Message("user", "x"), key="k"))
print("running", flush=True)
try:
    while True:
        turn.checkpoint()
        time.sleep(0.01)
except TurnCancelled:
    turn.finish("cancelled")
    turn.close()
    print("cancelled", flush=True)
"""

VICTIM = """
import sys
from nexo_django.messages import Message, ToolCall
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.jsonl import JSONLChat
from tests.stores.changes import change

def tell(*what):
    print(*what, flush=True)

chat, round = JSONLChat(sys.argv[1]), sys.argv[2]
tell("up")
for n in range(100_000):
    name = f"{round}.{n}"
    turn = chat.begin(TurnRequest(Message("user", f"ask {name}"), key=name, wait=100))
    tell("ask", name)
    turn.append(Message("assistant", None, tool_calls=(ToolCall("c", "look", {"n": name}),)))
    turn.start_call(ToolCall("c", "look"))
    turn.append(Message("tool", f"seen {name}", tool_call_id="c"))
    tell("seen", name)
    if n % 3 == 0:
        turn.compacted(change(turn.messages, Message("user", f"ask {name}")))
    turn.append(Message("assistant", f"done {name}"))
    tell("done", name)
    turn.close()
"""


def test_a_kill_at_any_point_loses_nothing_acknowledged(path: Path) -> None:
    chat = JSONLChat(path)
    told: list[str] = []
    for number in range(KILLS):
        # How many lines are waited for, not how long: a slow machine changes nothing.
        lines = _kill_after(path, str(number), random.Random(number).randrange(1, 25))
        told += [line for line in lines if line != "up"]
        stored = {m.content for m in chat.history()}
        assert not [line for line in told if line not in stored]
        view = chat.view()
        assert not view or transcript.problem(view) is None
    history = list(chat.history())
    texts = [m.content for m in history if (m.content and m.role != TOOL) or not m.is_error]
    spoken = [text for text in texts if text]
    assert len(spoken) == len(set(spoken))
    assert [text for text in spoken if text in set(told)] == told
    for name in {line.removeprefix("done ") for line in told if line.startswith("done ")}:
        again = chat.begin(ask(f"ask {name}", key=name))
        assert again.status == DONE
        assert again.reply is not None
        assert again.reply.content == f"done {name}"
    answered(chat, "still there?")


def _kill_after(path: Path, number: str, count: int) -> list[str]:
    victim = _start(VICTIM, path, number)
    assert victim.stdout is not None
    lines = [victim.stdout.readline() for _ in range(count)]
    victim.kill()
    rest, errors = victim.communicate(timeout=LONG)
    assert all(lines), errors
    # A line that was cut by the kill acknowledged nothing.
    return [line.strip() for line in [*lines, *rest.splitlines(keepends=True)] if "\n" in line]


def _start(code: str, path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _python(code: str, path: Path, *, check: bool) -> subprocess.CompletedProcess[str]:
    process = _start(code, path)
    out, errors = process.communicate(timeout=LONG)
    assert not check or process.returncode == 0, errors
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def test_a_turn_without_its_prompt_never_begins(tmp_path: Path) -> None:
    chat = JSONLChat(tmp_path / "log.jsonl")
    chat.begin(TurnRequest(Message("user", "one"), wait=0)).close()
    lost = TurnRequest(Message("user", "two"), key="k", wait=0)
    note = {"turn": 2, "key": "k", "fingerprint": lost.fingerprint, "at": chat.path.stat().st_size}
    with open(f"{chat.path}.turns", "a") as turns:
        turns.write(json.dumps(note) + "\n")
    turn = chat.begin(TurnRequest(None, wait=0))
    turn.append(Message("assistant", "answer one"))
    turn.close()
    # The log is longer now than it was where the second turn would have begun.
    turn = chat.begin(lost)
    assert (turn.number, turn.status, turn.reply) == (2, "running", None)
    turn.append(Message("assistant", "answer two"))
    turn.close()
    assert chat.begin(lost).reply == Message("assistant", "answer two")
