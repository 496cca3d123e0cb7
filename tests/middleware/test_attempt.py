"""What a tool leaves behind in the database's connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction

from nexo_django import Session, tool
from nexo_django.exceptions import ToolError
from nexo_django.messages import TOOL
from nexo_django.middleware.attempt import attempt
from nexo_django.pipeline import Env
from nexo_django.tools import ToolResult
from tests.support import Script, asking, call, make_agent

SAID = "left a transaction open on 'default'; it was rolled back"
# Kept, as an object of the tool's would keep it: a block that is forgotten does not end itself.
opened: list[Any] = []


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    opened.clear()


def add(name: str) -> None:
    get_user_model().objects.create_user(username=name)


def names() -> list[str]:
    return sorted(get_user_model().objects.values_list("username", flat=True))


def begin() -> None:
    block = transaction.atomic()
    block.__enter__()
    opened.append(block)


def one_block() -> str:
    begin()
    add("lost")
    return "ok"


def two_blocks() -> str:
    begin()
    add("lost")
    begin()
    add("lost too")
    return "ok"


def broken_block() -> str:
    begin()
    with pytest.raises(Exception, match="nosuchtable"):
        connection.cursor().execute("SELECT * FROM nosuchtable")
    return "ok"


def closed_block() -> str:
    begin()
    connection.close()
    return "ok"


def manual() -> str:
    connection.set_autocommit(False)
    add("lost")
    return "ok"


def manual_block() -> str:
    connection.set_autocommit(False)
    return one_block()


LEAVERS = [one_block, two_blocks, broken_block, closed_block, manual, manual_block]
IN_A_TEST = [one_block, two_blocks, broken_block]


def run(work: Callable[[], Any]) -> ToolResult:
    return attempt(Env(), call("work"), work)


def is_clean() -> bool:
    blocks = connection.in_atomic_block or connection.atomic_blocks or connection.savepoint_ids
    return not blocks and connection.get_autocommit()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("work", LEAVERS)
@pytest.mark.parametrize("connected", [True, False])
def test_what_is_left_open_is_rolled_back_and_told(
    work: Callable[[], str], connected: bool
) -> None:
    add("kept")
    if not connected:
        connection.close()
    result = run(work)
    assert result.is_error
    assert SAID in result.text
    assert is_clean()
    assert names() == ["kept"]
    with transaction.atomic():
        add("after")
    assert names() == ["after", "kept"]


@pytest.mark.django_db
@pytest.mark.parametrize("work", IN_A_TEST)
def test_inside_a_transaction_only_the_tools_own_is_unwound(work: Callable[[], str]) -> None:
    add("kept")
    depth = len(connection.atomic_blocks)
    result = run(work)
    assert result.is_error
    assert SAID in result.text
    assert len(connection.atomic_blocks) == depth
    assert names() == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_an_error_is_told_beside_it() -> None:
    def fail() -> None:
        begin()
        raise ToolError("Not today.")

    text = run(fail).text
    assert text.startswith("Not today.\n")
    assert SAID in text
    assert is_clean()


@pytest.mark.django_db(transaction=True)
def test_a_signal_to_stop_leaves_nothing_open_either() -> None:
    def stop() -> None:
        one_block()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    assert is_clean()
    assert names() == []


@pytest.mark.django_db(transaction=True)
def test_what_a_tool_ends_itself_is_its_own_affair() -> None:
    def save() -> str:
        with transaction.atomic():
            add("saved")
        return "saved"

    def close() -> str:
        connections.close_all()
        return "closed"

    assert run(save) == ToolResult("saved")
    assert run(close) == ToolResult("closed")
    assert names() == ["saved"]


@pytest.mark.django_db(transaction=True)
def test_a_queryset_that_fails_is_an_error() -> None:
    users = get_user_model().objects
    result = run(lambda: users.extra(where=["nosuchcolumn = 1"]))
    assert result.is_error
    assert "nosuchcolumn" in result.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("work", LEAVERS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_session_goes_on_after_it(work: Callable[[], str], count: int) -> None:
    script = Script(asking(*(call("leave") for _ in range(count))), "done", "again")
    leave = tool(work, name="leave")
    session = Session.resume(make_agent(script, "Leaving", tools=[leave]), "one")
    assert session.prompt("go").content == "done"
    stored = [m for m in session.history() if m.role == TOOL]
    assert [m.is_error for m in stored] == [True] * count
    assert all(SAID in (m.content or "") for m in stored)
    assert session.prompt("on").content == "again"
    assert is_clean()
    assert names() == []
