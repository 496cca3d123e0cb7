"""The documents' examples of compaction, in Python, as they are written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nexo_django import Pipeline, tool
from nexo_django.compaction import CompactionPipeline, SlidingWindow, Summarize, ToolResults
from nexo_django.messages import SUMMARY, SYSTEM, USER, Message
from nexo_django.middleware import (
    DefaultCompactionPipeline,
    DefaultToolPipeline,
    SessionLog,
    SystemPrompt,
    ToolResultLoop,
)
from nexo_django.tokens import Approximate
from tests.compaction.conversations import Summariser
from tests.compaction.test_sliding_window import WHOLE
from tests.support import Script, asking, call

WORDS = "a long story of many words " * 60
WINDOW = 1500


@tool
def read(number: int) -> str:
    """Read a long text."""
    return f"{number}: {WORDS}"


def script() -> Script:
    """Two turns: one that reads much, and one that asks what was said."""
    return Script(*[asking(call("read", number=n)) for n in range(6)], "Read.", "Nathan.")


def layers(summariser: Summariser) -> dict[str, Any]:
    """Give the four ways to say how to compact."""
    ladder = (
        CompactionPipeline()
        .use(ToolResults, keep_steps=1)
        .use(SlidingWindow, keep_steps=2)
        .run(Summarize(summariser))
    )
    plain = CompactionPipeline().use(ToolResults).use(SlidingWindow).run(Summarize(summariser))
    listed = [ToolResults(), SlidingWindow(), Summarize(summariser)]
    return {
        "a compactor with options": {"compactor": ladder},
        "a compactor": {"compactor": plain},
        "a list": {"compactors": listed},
        "the ladder already wired": {"summariser": summariser},
    }


@pytest.mark.parametrize("how", list(layers(Summariser())))
def test_the_agent_of_the_documents(tmp_path: Path, how: str) -> None:
    path, summariser, model, archive = tmp_path / "session.jsonl", Summariser(), script(), []
    agent = (
        Pipeline()
        .use(SessionLog, path=str(path))
        .use(SystemPrompt, "You are helpful.")
        .use(ToolResultLoop)
        .use(DefaultCompactionPipeline, window=WINDOW, **layers(summariser)[how])
        .use(DefaultToolPipeline, tools=[read])
        .run(model)
    )
    agent.on("compacted", lambda env, payload: archive.append((env, payload)))
    agent.start("My name is Nathan. " + "Remember it. " * 60)
    env = agent.start("What's my name?")
    assert env.reply is not None
    assert env.reply.content == "Nathan."
    # Before every call: while the tool's results filled the window, no turn had ended.
    assert len(archive) >= 2
    counter = Approximate()
    assert all(counter.count(request) <= WINDOW for request in model.requests)
    for told, payload in archive:
        assert told.messages
        assert payload["after"] < payload["before"] <= payload["context"]
        assert payload["layers"][0] == "tool_results"
    # The log has what survived, and no system message.
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [Message.from_dict(line) for line in lines if line.get("role") in (USER, "tool")]
    assert kept
    assert SYSTEM not in [line.get("role") for line in lines]


def test_a_pipeline_that_must_never_spend_a_call() -> None:
    free = CompactionPipeline().use(ToolResults).use(SlidingWindow).run(lambda env: env)
    target = Approximate().count(WHOLE) // 2
    smaller = free.compact(WHOLE, target=target)
    assert smaller is not None
    assert Approximate().count(smaller) <= target
    assert not any(m.kind == SUMMARY for m in smaller)


def test_a_layer_that_got_under_the_target_never_calls_the_next() -> None:
    summariser, seen = Summariser(), []

    def paid(env: Any) -> None:
        seen.append(env)
        Summarize(summariser)(env)

    compactor = CompactionPipeline().use(ToolResults, min_tokens=0).use(SlidingWindow).run(paid)
    whole = Approximate().count(WHOLE)
    assert compactor.compact(WHOLE, target=whole - 10) is not None
    assert seen == []
    assert compactor.compact(WHOLE, target=whole + 1) is None


def test_the_conversation_rides_beside_the_messages() -> None:
    seen: list[tuple[int, int]] = []

    class Looks(SlidingWindow):
        def __call__(self, env: Any) -> None:
            seen.append((len(env.conversation), len(env.messages)))
            super().__call__(env)

    CompactionPipeline().use(Looks).run(lambda env: env).compact(WHOLE, target=10)
    assert seen == [(len(WHOLE), 0)]
