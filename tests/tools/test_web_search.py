"""The web is searched by what the host names, and what that gives is looked at."""

from __future__ import annotations

import itertools
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django import checks
from nexo_django.exceptions import InvalidArguments, LimitExceeded, ToolError
from nexo_django.pipeline import Env
from nexo_django.tools.web_search import WebSearch, web_search
from tests.support import Script, make_agent

asked: list[tuple[str, int]] = []


def search(query: str, count: int) -> list[dict[str, str]]:
    asked.append((query, count))
    found = {"title": f"About {query}", "url": "https://a.example/1", "snippet": "It  is\nthat."}
    return [found, {"title": "", "url": "https://a.example/2", "snippet": ""}]


def given_by(found: Any, count: int = 5) -> str:
    return WebSearch(lambda query, count: found).run({"query": "x", "count": count}, Env()).text


def test_results_are_listed(settings: Any) -> None:
    settings.NEXO = {"WEB_SEARCH": f"{__name__}.search"}
    asked.clear()
    assert web_search.run({"query": "cats"}, Env()).text == (
        "1. About cats\n   https://a.example/1\n   It is that.\n\n"
        "2. https://a.example/2\n   https://a.example/2"
    )
    assert asked == [("cats", 5)]


def test_an_async_search_is_waited_for() -> None:
    async def later(query: str, count: int) -> Any:
        return search(query, count)

    assert "About x" in WebSearch(later).run({"query": "x"}, Env()).text


def test_nothing_found_is_said() -> None:
    assert given_by([]) == "Nothing was found."


def test_no_more_is_told_than_was_asked_for() -> None:
    item = {"title": "t" * 9000, "url": "https://a.example/", "snippet": "s" * 1_000_000}
    text = given_by(itertools.repeat(item), count=3)
    assert text.count("https://a.example/") == 3
    assert len(text) < 3000


URL = {"title": "t", "url": "https://a.example/", "snippet": "s"}


@pytest.mark.parametrize(
    "found",
    [
        None,
        "text",
        {"results": []},
        3,
        ["text"],
        [None],
        [{**URL, "url": None}],
        [{**URL, "url": "javascript:x"}],
        [{**URL, "url": "https://" + "a" * 3000}],
        [{**URL, "title": 3}],
        [{**URL, "snippet": ["x"]}],
        [URL, {}],
    ],
)
def test_a_search_that_gives_something_else_is_said(found: Any) -> None:
    with pytest.raises(ToolError, match=r"The web search gave .* go on without it"):
        given_by(found)


@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["title", "url", "snippet"]), inner)
        ),
    )
)
def test_whatever_it_gives_there_is_a_result_or_a_tool_error(found: Any) -> None:
    with suppress(ToolError):
        assert given_by(found)


def test_a_search_that_fails_tells_the_model_nothing_of_the_host(caplog: Any) -> None:
    def failing(query: str, count: int) -> Any:
        raise RuntimeError("https://search.internal/?key=sk-123")

    with pytest.raises(ToolError) as caught:
        WebSearch(failing).run({"query": "x"}, Env())
    assert "sk-123" not in str(caught.value)
    assert "sk-123" in caplog.text


def test_signals_to_stop_pass_through() -> None:
    def stopping(query: str, count: int) -> Any:
        raise LimitExceeded

    with pytest.raises(LimitExceeded):
        WebSearch(stopping).run({"query": "x"}, Env())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": ""},
        {"query": "x" * 1001},
        {"query": "x", "count": 0},
        {"query": "x", "count": 11},
    ],
)
def test_wrong_arguments_are_said(arguments: Any) -> None:
    with pytest.raises(InvalidArguments):
        WebSearch(search).run(arguments, Env())


@pytest.mark.parametrize("path", ["no.such.module", f"{__name__}.URL", f"{__name__}.missing"])
def test_a_path_that_names_no_function_is_found_by_the_check(settings: Any, path: str) -> None:
    settings.NEXO = {"WEB_SEARCH": path}
    found = checks.check_settings()
    assert [message.id for message in found] == ["nexo_django.E001"]
    assert path in found[0].msg
    with pytest.raises(ToolError, match="does not work"):
        web_search.run({"query": "x"}, Env())


def test_it_is_offered_where_it_may_be_used(settings: Any) -> None:
    def names(**attributes: Any) -> list[str]:
        cls = make_agent(Script(), tools=["web_search"], **attributes)
        return [tool.name for tool in cls().offered()]

    assert "web_search" not in names(permissions="auto")
    settings.NEXO = {"WEB_SEARCH": f"{__name__}.search"}
    assert "web_search" in names(permissions="auto")
    assert names() == []
    assert WebSearch(search).offered_to(SimpleNamespace())
