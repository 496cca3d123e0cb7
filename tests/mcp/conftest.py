"""What the tests of MCP share: sessions that keep their chats in memory, and no server left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from nexo_django import Session
from nexo_django.mcp import background
from nexo_django.stores.memory import MemoryStore
from tests.mcp.support import until
from tests.support import Script, make_agent


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    MemoryStore.reset()
    with override_settings(NEXO={"SESSION_STORE": "memory", "TIMEOUT": 60, "TURN_WAIT": 0}):
        yield


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    until(lambda: not background._owned)


@pytest.fixture
def resumed() -> Iterator[Any]:
    """Make a session of an agent with servers and a script, closed at the end."""
    made: list[Session] = []

    def make(servers: dict[str, Any], *steps: Any, **attributes: Any) -> Session:
        declared = {"permissions": "auto", **attributes}
        agent = make_agent(Script(*steps), mcp=servers, **declared)
        made.append(Session.resume(agent, f"user-{len(made)}"))
        return made[-1]

    yield make
    for session in made:
        session.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder by its real path: the filesystem server compares paths."""
    return tmp_path.resolve()
