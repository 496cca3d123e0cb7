"""What the package of layers offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexo_django import middleware

BARE = """
import sys
from nexo_django import Pipeline, ToolCall, tool
from nexo_django.middleware import (
    DefaultToolPipeline, MaxIterations, SessionLog, SystemPrompt, ToolResultLoop)

@tool
async def thrice(text: str) -> str:
    return text * 3

def model(env):
    calls = [ToolCall(name, "thrice", {"text": name}) for name in "abc"]
    if env.messages[-1].role == "user":
        env.messages.assistant(tool_calls=calls)
    else:
        env.messages.assistant("done")

agent = (Pipeline().use(SessionLog, path=sys.argv[1]).use(SystemPrompt, "Hi.")
    .use(ToolResultLoop).use(MaxIterations).use(DefaultToolPipeline, tools=[thrice]).run(model))
for _ in range(2):
    env = agent.start("go")
print([m.content for m in env.messages if m.role == "tool"])
from django.conf import settings
assert not settings.configured
"""


@pytest.mark.parametrize("name", middleware.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(middleware, name).__name__ == name


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="Nowhere"):
        _ = middleware.Nowhere


def test_a_bare_pipeline_needs_no_settings(tmp_path: object) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", BARE, f"{tmp_path}/session.jsonl"],
        env={},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout == f"{['aaa', 'bbb', 'ccc'] * 2}\n", ran.stderr
