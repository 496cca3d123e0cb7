"""The gate in pipelines without a session."""

from __future__ import annotations

import pytest

from nexo_django import Pipeline, ToolCall, tool
from nexo_django.decisions import ANSWERED, Decision
from nexo_django.middleware import DefaultToolPipeline, SessionLog, ToolResultLoop
from nexo_django.stores.jsonl import JSONLChat
from tests.support import Script, asking


@tool(capability="shell")
def run(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def stack(*steps, **options):
    return (
        Pipeline()
        .use(SessionLog, **options)
        .use(ToolResultLoop)
        .use(DefaultToolPipeline, tools=[run, "question"])
        .run(Script(*steps))
    )


def test_a_bare_pipeline_allows_what_the_host_gave_it():
    env = stack(asking(ToolCall("a", "run", {"command": "ls"})), "bye").start("Go.")
    assert [m.content for m in env.messages][2:] == ["ran ls", "bye"]


def test_without_a_log_nobody_can_be_asked():
    env = stack(asking(ToolCall("a", "question", {"text": "Sure?"})), "bye").start("Go.")
    assert "Nobody can decide" in env.messages[2].content
    assert env.messages[2].is_error


def test_a_question_in_a_log_waits_for_its_answer(tmp_path):
    path = tmp_path / "log.jsonl"
    asked = asking(ToolCall("a", "question", {"text": "Sure?"}))
    env = stack(asked, path=path).start("Go.")
    assert env.metadata["status"] == "awaiting_answer"
    log = JSONLChat(path)
    (call,) = log.pending()
    assert (call.id, call.kind) == ("a", "question")
    log.decide("a", Decision(ANSWERED, text="Yes."))
    env = stack("bye", path=path).start()
    assert [m.content for m in env.messages][2:] == ["Yes.", "bye"]


@pytest.mark.parametrize("line", ["{}", '{"call": "x", "verb": "perhaps"}', "torn", '{"call": 1'])
def test_lines_of_decisions_that_are_none_are_left_out(tmp_path, line):
    path = tmp_path / "log.jsonl"
    asked = asking(ToolCall("a", "question", {"text": "Sure?"}))
    stack(asked, path=path).start("Go.")
    path.with_name("log.jsonl.decisions").write_text(line)
    log = JSONLChat(path)
    assert len(log.pending()) == 1
    log.decide("a", Decision(ANSWERED, text="Yes."))
    assert log.pending() == []
    assert stack("bye", path=path).start().messages[2].content == "Yes."
