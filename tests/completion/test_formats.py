"""Whatever a model calls, the conversation goes on: sessions against four providers' formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from nexo_django import Agent, Session, tool
from nexo_django.completion import warm
from nexo_django.models import ToolCall
from tests.completion.formats import FORMATS, Call, Provider

pytestmark = pytest.mark.django_db(transaction=True)
EACH = pytest.mark.parametrize("name", list(FORMATS))
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LONG = "call_" + "x" * 195


@tool
def weather(city: str = "here") -> str:
    """Current weather in a city."""
    return f"sunny in {city}"


@tool
def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"rain in {city}"


class Hardened(Agent):
    """An agent whose model and tools are another's at every turn."""

    tools = (weather, forecast)


@pytest.fixture(scope="module", autouse=True)
def litellm() -> None:
    warm()


@pytest.fixture
def providers() -> Iterator[dict[str, Provider]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Provider(name)) for name in FORMATS}


def ask(provider: Provider, text: str, *, stream: bool = False, **overrides: Any) -> str:
    """Run a turn of the one session on a provider."""
    overrides = {"model": provider.format.model, "options": provider.options, **overrides}
    session = Session.resume(Hardened, "u", **overrides)
    if not stream:
        return session.prompt(text).content
    events = list(session.stream(text))
    assert not provider.faults
    return str(events[-1].payload["content"])


def odd_calls(name: str, stream: bool) -> list[Call]:
    """Give calls that are wrong in every way in which the format can tell them."""
    calls = [
        ("call_1", "weather", '{"city": "Oslo"}'),
        ("call_1", "weather", '{"city": "Lima"}'),
        (LONG, "weather", '{"city": "Rome"}'),
        (f"{LONG}2", "weather", '{"city": "Bonn"}'),
        ("functions.weather:0", "weather", "{}"),
        ("gone", "no_such_tool", '{"a": {"b": [1, null]}}'),
        ("named", "9 lives / <tool>", "{}"),
        ("listed", "weather", '["Oslo"]'),
    ]
    if name != "gemini" and (stream or name != "anthropic"):
        calls.append(("broken", "weather", '{"city": "Os'))
        calls.append(("none", "weather", ""))
    return calls


@EACH
@STREAMED
def test_odd_calls(providers: dict[str, Provider], name: str, stream: bool) -> None:
    provider = providers[name]
    calls = odd_calls(name, stream)
    provider.then_answer(None, calls).then_answer("All done.")
    assert ask(provider, "Look everywhere.", stream=stream) == "All done."
    # One tool is gone, then all of them.
    assert ask(provider, "And now?", stream=stream, tools=[forecast]) == "ok"
    assert ask(provider, "And without tools?", stream=stream, tools=[]) == "ok"
    assert not provider.faults
    assert ToolCall.objects.count() == len(calls)
    assert not ToolCall.objects.filter(result__isnull=True).exists()
    results = [m for m in Session.get(Hardened, "u").history() if m.role == "tool"]
    assert [m.content for m in results[:4]] == [
        f"sunny in {city}" for city in ("Oslo", "Lima", "Rome", "Bonn")
    ]
    assert all(m.is_error for m in results[5:8])


@EACH
@STREAMED
def test_128_parallel_calls(providers: dict[str, Provider], name: str, stream: bool) -> None:
    provider = providers[name]
    calls = [(f"call_{n}", "weather", json.dumps({"city": f"city {n}"})) for n in range(128)]
    provider.then_answer("I look.", calls).then_answer("All done.")
    assert ask(provider, "Look everywhere.", stream=stream) == "All done."
    assert ask(provider, "Thanks.", stream=stream) == "ok"
    assert not provider.faults
    results = [m.content for m in Session.get(Hardened, "u").history() if m.role == "tool"]
    assert results == [f"sunny in city {n}" for n in range(128)]


@EACH
def test_every_format_takes_what_another_wrote(providers: dict[str, Provider], name: str) -> None:
    first = providers[name]
    calls = odd_calls(name, stream=True)
    for _ in range(2):
        # The same ids again in another step.
        first.then_answer("Again.", calls)
    first.then_answer("All done.")
    assert ask(first, "Look everywhere, twice.", stream=True) == "All done."
    for other, provider in providers.items():
        provider.then_answer(None, [("call_1", "forecast", '{"city": "Oslo"}')])
        assert ask(provider, f"Now you, {other}.") == "ok"
    for provider in providers.values():
        assert ask(provider, "Still there?", tools=[]) == "ok"
    assert [provider.faults for provider in providers.values()] == [[], [], [], []]


@EACH
def test_a_turn_that_was_cut_off_goes_on(providers: dict[str, Provider], name: str) -> None:
    provider = providers[name]
    calls = [(LONG, "weather", '{"city": "Oslo"}'), (LONG, "weather", '{"city": "Lima"}')]
    provider.then_answer(None, calls)
    session = Session.resume(Hardened, "u", model=provider.format.model, options=provider.options)
    assert session.prompt("Look.", max_turns=1).status == "turn_limit"
    assert session.prompt("Go on.").content == "ok"
    assert session.prompt("And on.").content == "ok"
    assert not provider.faults


@EACH
def test_the_request_only_grows(providers: dict[str, Provider], name: str) -> None:
    provider = providers[name]
    provider.then_answer(None, odd_calls(name, stream=False)).then_answer("All done.")
    for text in ("Look everywhere.", "And now?", "And then?"):
        ask(provider, text)
    key = "contents" if name == "gemini" else "messages"
    sent = [json.dumps(request[key])[:-1] for request in provider.requests]
    assert len(sent) == 4
    # Where results and the next prompt are one message, that one grows.
    for before, after in pairwise(sent):
        assert after.startswith(before[: before.rindex('{"role"')])
