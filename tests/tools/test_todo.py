"""The list of what is to be done is kept with the chat, whatever becomes of its messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django import Session
from nexo_django.exceptions import InvalidArguments, ToolError
from nexo_django.pipeline import Env
from nexo_django.sandbox.files import HeldFiles
from nexo_django.tools.todo import PATH, todo_read, todo_write
from tests.support import Script, asking, call, make_agent

TODOS = [
    {"content": "look", "status": "completed"},
    {"content": "write", "status": "in_progress"},
    {"content": "test"},
]
SHOWN = "[x] look\n[~] write\n[ ] test\n(1 of 3 completed)"


def an_env(**contents: bytes) -> Env:
    return Env(turn=SimpleNamespace(files=HeldFiles(dict(contents))))


def test_a_list_is_kept() -> None:
    env = an_env()
    assert todo_read.run({}, env).text == "There is nothing on the list."
    assert todo_write.run({"todos": TODOS}, env).text == SHOWN
    assert todo_read.run({}, env).text == SHOWN
    assert todo_write.run({"todos": []}, env).text == "There is nothing on the list."
    assert env.turn.files.contents == {}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"todos": "look"},
        {"todos": ["look"]},
        {"todos": [{"content": ""}]},
        {"todos": [{"content": "  "}]},
        {"todos": [{"content": "x", "status": "done"}]},
        {"todos": [{"content": "x" * 1001}]},
        {"todos": [{"content": "x"}] * 101},
        {"todos": {"content": "x"}},
        {"todos": None},
    ],
)
def test_wrong_lists_are_said_and_change_nothing(arguments: Any) -> None:
    env = an_env()
    todo_write.run({"todos": TODOS}, env)
    with pytest.raises(InvalidArguments):
        todo_write.run(arguments, env)
    assert todo_read.run({}, env).text == SHOWN


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b"[1]", b"\xff", b'[{"content": 3}]'])
def test_a_file_that_is_no_list_is_said(data: bytes) -> None:
    env = an_env()
    env.turn.files.contents[PATH] = data
    if not data:
        assert "nothing on the list" in todo_read.run({}, env).text
        return
    with pytest.raises(ToolError, match="write it again with todo_write"):
        todo_read.run({}, env)


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_can_be_on_the_list(texts: list[str]) -> None:
    env = an_env()
    try:
        shown = todo_write.run({"todos": [{"content": text} for text in texts]}, env).text
    except InvalidArguments:
        return
    assert todo_read.run({}, env).text == shown


@pytest.mark.parametrize("turn", [None, SimpleNamespace()])
def test_without_a_session_there_is_no_list(turn: Any) -> None:
    for tool, arguments in ((todo_write, {"todos": TODOS}), (todo_read, {})):
        with pytest.raises(ToolError, match="keeps no session"):
            tool.run(arguments, Env(turn=turn))


@pytest.fixture(params=["database", "memory", "jsonl"])
def store(request: Any, settings: Any, tmp_path: Any) -> str:
    kept = f"jsonl:{tmp_path}" if request.param == "jsonl" else request.param
    settings.NEXO = {"SESSION_STORE": kept}
    return str(request.param)


@pytest.mark.django_db
def test_it_survives_the_session_and_a_compaction(store: str) -> None:
    tools = ["todo_write", "todo_read"]
    first = make_agent(Script(asking(call("todo_write", todos=TODOS)), "kept"), tools=tools)
    name = f"todo-{store}"
    Session.resume(first, name).prompt("Plan it.")
    again = make_agent(Script(*(f"answer {n}" for n in range(4))), tools=tools)
    session = Session.resume(again, name)
    for number in range(4):
        session.prompt(f"Message {number}.")
    session.compact()
    assert all(SHOWN not in (message.content or "") for message in session.messages)
    other = make_agent(Script(asking(call("todo_read")), "read"), tools=tools)
    session = Session.resume(other, name)
    session.prompt("What is left?")
    assert session.messages[-2].content == SHOWN
    stranger = make_agent(Script(asking(call("todo_read")), "read"), tools=tools)
    other_session = Session.resume(stranger, f"{name}-other")
    other_session.prompt("What is left?")
    assert other_session.messages[-2].content == "There is nothing on the list."
