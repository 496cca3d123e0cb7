"""Two locks: the agent's permissions, and its list of hosts; a stored chat opens neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nexo_django import Session, checks, events
from nexo_django.exceptions import ConfigurationError
from nexo_django.fetch import Fetch
from nexo_django.permissions import Permissions
from tests.fetch.servers import OUTSIDE, Names, World, answer, world
from tests.support import Script, asking, call, make_agent


@pytest.fixture(scope="module")
def place() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.mark.parametrize(
    ("permissions", "allow", "offered"),
    [
        ("auto", ["*"], True),
        ("approve", ["*"], True),
        ("auto", [], False),
        ("auto", None, False),
        ("read_only", ["*"], False),
        ("ask", ["*"], False),
        (None, ["*"], False),
        (Permissions("read_only", allow=["fetch"]), ["*"], True),
        (Permissions("ask", on_ask=lambda capability, detail: True), ["*"], True),
    ],
)
def test_both_locks_must_be_open(permissions: Any, allow: Any, offered: bool) -> None:
    for tools in ([], ["fetch"], [Fetch(timeout=5)]):
        cls = make_agent(Script(), tools=tools, permissions=permissions, fetch_allow=allow)
        names = [tool.name for tool in cls().offered()]
        assert ("fetch" in names) is offered
        assert names.count("fetch") <= 1


@pytest.mark.django_db
def test_what_a_chat_was_once_allowed_it_has_no_more(place: World) -> None:
    place.acts = {"/": answer("<p>the page", kind="text/html")}
    fetch = Fetch(allow_private=[f"{OUTSIDE}/32"], resolve=Names(), timeout=60)
    url = f"http://good.test:{place.port}/"

    def result(**attributes: Any) -> Any:
        script = Script(asking(call("fetch", url=url)), "done")
        cls = make_agent(script, tools=[fetch], permissions="auto", **attributes)
        told: list[Any] = []
        Session.resume(cls, "reader").prompt("Read it.", on_event=lambda *event: told.append(event))
        return next(payload for event, payload in told if event == events.TOOL_RESULT)

    read = result(fetch_allow=[f"good.test:{place.port}"])
    assert read["content"] == f"{url} answered 200 OK (text/html)\n\nthe page"
    refused = result(fetch_allow=[f"other.test:{place.port}"])
    assert refused["is_error"]
    assert "is not on this agent's list of hosts" in refused["content"]
    withheld = result(fetch_allow=[])
    assert withheld["is_error"]
    assert place.touched == 0


@pytest.mark.django_db
def test_a_long_page_is_kept_and_read_on(place: World) -> None:
    place.acts = {"/": answer("\n".join(f"line {number}" for number in range(10_000)))}
    fetch = Fetch(allow_private=[f"{OUTSIDE}/32"], resolve=Names(), timeout=60)
    script = Script(asking(call("fetch", url=f"http://good.test:{place.port}/")), "done")
    cls = make_agent(
        script, tools=[fetch], permissions="auto", fetch_allow=[f"good.test:{place.port}"]
    )
    session = Session.resume(cls, "long")
    session.prompt("Read it.")
    shown = session.messages[-2].content
    assert shown is not None
    assert "read_output(" in shown
    assert len(shown.splitlines()) <= 2000


@pytest.mark.parametrize("allow", ["a.example", ["*.com"], [3], {"a": 1}])
def test_a_wrong_list_is_refused_before_anything_is_written(allow: Any) -> None:
    cls = make_agent(Script(), name="WrongList", fetch_allow=allow)
    with pytest.raises(ConfigurationError, match="fetch_allow"):
        cls().check()
    found = checks._declaration(cls())
    assert [message.id for message in found] == ["nexo_django.E005"]
