"""The documents' own examples, in Python, of everything but compaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nexo_django import Agent, Env, Message, Pipeline, Session, ToolCall, events, tool
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, USER
from nexo_django.middleware import DefaultToolPipeline, SessionLog, SystemPrompt, ToolResultLoop
from nexo_django.truncation import truncate
from tests.support import Script, asking, call, make_agent


@tool
def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def test_the_session_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    agent = (
        Pipeline()
        .use(SessionLog, path=path)
        .use(ToolResultLoop)
        .use(DefaultToolPipeline, tools=[shell])
        .run(Script(asking(ToolCall("tc1", "shell", {"command": "ls"}), text=""), "Two files."))
    )
    env = agent.start("What is here?")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["role"] for line in lines] == [USER, ASSISTANT, TOOL, ASSISTANT]
    assert lines[1]["tool_calls"] == [
        {"id": "tc1", "name": "shell", "arguments": {"command": "ls"}}
    ]
    assert [Message.from_dict(line) for line in lines] == env.messages


def test_a_sample_line_is_read_and_written_without_loss() -> None:
    line = (
        '{"role":"assistant","content":"","tool_calls":'
        '[{"id":"tc1","name":"shell","arguments":{"command":"ls"}}]}'
    )
    message = Message.from_dict(json.loads(line))
    assert message.calls == (ToolCall("tc1", "shell", {"command": "ls"}),)
    assert json.dumps(message.to_dict(), separators=(",", ":")) == line


def test_multi_turn(tmp_path: Path) -> None:
    seen: list[list[str | None]] = []

    def remember(env: Env) -> str:
        seen.append([message.content for message in env.messages if message.role == USER])
        return "noted"

    agent = (
        Pipeline()
        .use(SessionLog, path=str(tmp_path / "chat.jsonl"))
        .use(SystemPrompt)
        .run(Script(remember, remember))
    )
    agent.start("My name is Nathan.")
    env = agent.start("What's my name?")
    assert seen[1] == ["My name is Nathan.", "What's my name?"]
    assert [message.role for message in env.messages].count(SYSTEM) == 1
    assert SYSTEM not in (tmp_path / "chat.jsonl").read_text()


def test_every_result_is_capped_as_it_enters_the_log() -> None:
    @tool
    def flood() -> str:
        """Say a lot."""
        return "x" * 5000 + "\n" + "line\n" * 100_000

    env = (
        Pipeline()
        .use(ToolResultLoop)
        .use(DefaultToolPipeline, tools=[flood])
        .run(Script(asking(call("flood"))))
        .start("go")
    )
    content = next(m.content for m in env.messages if m.role == TOOL) or ""
    lines = content.split("\n")
    assert len(lines) <= 2000
    assert len(content.encode()) <= 50 * 1024
    assert max(map(len, lines)) <= 2000
    assert [event.type for event in env.events].count(events.TRUNCATED) == 1


@pytest.mark.parametrize(("mode", "kept"), [("head", "line 0\n"), ("tail", "line 9999")])
def test_the_beginning_is_kept_or_the_end(mode: str, kept: str) -> None:
    text = "\n".join(f"line {n}" for n in range(10_000))
    cut = truncate(text, mode=mode)
    assert cut.truncated
    assert kept in cut.text


def test_a_compactor_of_one_callable_is_a_policy_said_out_loud() -> None:
    env = Pipeline().run(lambda env: env).start("hi")
    assert [message.role for message in env.messages] == [USER]


@pytest.fixture
def agent() -> type[Agent]:
    return make_agent(None, name="SeedAssistant", instructions="You are concise.")


@pytest.mark.django_db
def test_a_session_remembers(agent: type[Agent]) -> None:
    Session.resume(agent, "user-42").prompt("My name is Mac.")
    reply = Session.resume(agent, "user-42").prompt("What is my name?")
    assert "Mac" in reply.content
    assert str(reply) == reply.content


@pytest.mark.django_db
def test_instances_are_apart_and_keep_one_system_message(agent: type[Agent]) -> None:
    for _ in range(3):
        Session.resume(agent, "user-42").prompt("My name is Mac.")
    other = Session.resume(agent, "user-43").prompt("What is my name?")
    assert "Mac" not in other.content
    roles = [message.role for message in Session.resume(agent, "user-42").messages]
    assert roles.count(SYSTEM) == 1
    assert roles[0] == SYSTEM


@pytest.mark.django_db
def test_prompt_tells_of_tools_and_the_end() -> None:
    script = Script(asking(call("shell", command="ls")), "done")
    agent = make_agent(script, name="SeedTools", tools=[shell])
    heard: list[tuple[str, dict[str, Any]]] = []
    session = Session.resume(agent, "u1")
    session.prompt("go", max_turns=5, on_event=lambda kind, payload: heard.append((kind, payload)))
    kinds = [kind for kind, _ in heard if kind != "content"]
    assert kinds == ["tool_call", "tool_result", "done"]
    assert heard[-1][1]["content"] == "done"


@pytest.mark.django_db
def test_close_may_be_called_twice_and_in_a_finally(agent: type[Agent]) -> None:
    session = Session.resume(agent, "user-42")
    try:
        session.prompt("Summarize my unread threads.")
    finally:
        session.close()
    session.close()
    with Session.resume(agent, "user-42") as again:
        assert len(again.messages) >= 2
