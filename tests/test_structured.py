"""Answers of a declared type: asked for, checked, corrected once, and refused clearly."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from nexo_django import Session, tool
from nexo_django.exceptions import (
    ConfigurationError,
    KeyConflict,
    NothingToContinue,
    OutputInvalid,
    ProviderUnavailable,
)
from nexo_django.messages import NOTICE
from nexo_django.models import Turn
from nexo_django.structured import Output, Unfit, response_format
from tests.support import Script, asking, call, make_agent

pytestmark = pytest.mark.django_db(transaction=True)
OSLO = '{"name": "Oslo", "people": 700000}'


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(ge=0)


class Country(BaseModel):
    capital: City
    others: list[City] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Entry(TypedDict):
    word: str


@tool
def lookup(name: str) -> str:
    """Look a city up."""
    return "700000"


def session(*steps: Any, **attributes: Any) -> tuple[Session, Script]:
    script = Script(*steps)
    return Session.resume(make_agent(script, name="Typed", **attributes), "u"), script


@pytest.mark.parametrize(
    ("wanted", "said", "value"),
    [
        (City, OSLO, City(name="Oslo", people=700000)),
        (City, f"Here it is:\n```json\n{OSLO}\n```", City(name="Oslo", people=700000)),
        (City, f"It is {OSLO}, I think.", City(name="Oslo", people=700000)),
        (Country, f'{{"capital": {OSLO}}}', Country(capital=City(name="Oslo", people=700000))),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Entry, '{"word": "a"}', {"word": "a"}),
        (list[int], '{"result": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (int, '{"result": 3}', 3),
        (str, '{"result": "x"}', "x"),
        (Literal["a", "b"], '"b"', "b"),
        (City | Point, '{"x": 1}', Point(1)),
        (City | None, '{"result": null}', None),
        (dict[str, int], '{"result": 1}', {"result": 1}),
    ],
    ids=str,
)
def test_the_answer_as_a_value(wanted: Any, said: str, value: Any) -> None:
    made, script = session(said)
    reply = made.prompt("Which?", output=wanted)
    assert reply.output == value
    assert reply.content == said
    assert len(script.requests) == 1
    assert [m.content for m in made.history()] == ["Which?", said]


def test_a_plain_prompt_has_no_output() -> None:
    made, _ = session(OSLO)
    assert made.prompt("Which?").output is None


def test_an_answer_that_does_not_fit_is_corrected_once() -> None:
    made, script = session('{"name": "Oslo"}', OSLO, "later")
    events: list[Any] = []
    reply = made.prompt("Which?", output=City, on_event=lambda *event: events.append(event))
    assert reply.output == City(name="Oslo", people=700000)
    told = script.requests[1][-1]
    assert (told.role, told.kind, told.mark) == ("user", NOTICE, "output_repair")
    assert "people: Field required" in (told.content or "")
    assert [m.kind for m in made.history()] == ["normal", "normal", NOTICE, "normal"]
    kinds = [kind for kind, _ in events if kind != "content"]
    assert kinds == ["retry", "done"]
    assert events[-1][1]["output"] == {"name": "Oslo", "people": 700000}
    json.dumps(events)
    turn = Turn.objects.get()
    assert (turn.status, turn.input_tokens) == ("done", 20)
    # The next turn goes on after all of it, and is asked for nothing.
    assert made.prompt("Thanks.").output is None
    assert [m.kind for m in script.requests[2]] == ["normal", "normal", NOTICE, "normal", "normal"]


def test_an_answer_that_never_fits() -> None:
    made, script = session("no", '{"name": "secret", "people": -1}')
    heard: list[str] = []
    with pytest.raises(OutputInvalid, match="is no City: 1 error") as caught:
        made.prompt("Which?", output=City, on_event=lambda kind, payload: heard.append(kind))
    error = caught.value
    assert [e["type"] for e in error.errors] == ["greater_than_equal"]
    assert "secret" not in f"{error} {error.errors}"
    assert error.reply.content == '{"name": "secret", "people": -1}'
    assert heard[-1] == "error"
    assert "done" not in heard
    assert len(script.requests) == 2
    # The answer stays, the turn is done, and the session goes on.
    assert made.history()[-1].content == error.reply.content
    assert Turn.objects.get().status == "done"
    with pytest.raises(NothingToContinue):
        made.continue_turn()
    assert made.prompt("Never mind.").content == "done"


def test_it_works_beside_tools() -> None:
    ask = asking(call("lookup", name="Oslo"))
    again = asking(call("lookup", name="Oslo"), text="Let me look again.")
    made, script = session(ask, '{"name": "Oslo"}', again, OSLO, tools=[lookup])
    reply = made.prompt("How many?", output=City)
    assert reply.output == City(name="Oslo", people=700000)
    assert len(script.requests) == 4


def test_the_limit_of_calls_holds_for_the_correction_too() -> None:
    made, script = session("no", OSLO)
    reply = made.prompt("Which?", output=City, max_turns=1)
    assert (reply.status, reply.output) == ("turn_limit", None)
    assert len(script.requests) == 1


def test_the_key_names_the_type_too() -> None:
    made, script = session(OSLO)
    for _ in range(2):
        assert made.prompt("Which?", output=City, key="k").output.name == "Oslo"
    assert len(script.requests) == 1
    for other in (Point, None):
        with pytest.raises(KeyConflict):
            made.prompt("Which?", output=other, key="k")


def test_a_stored_answer_that_does_not_fit_is_told_again() -> None:
    made, script = session("no", "no")
    for _ in range(2):
        with pytest.raises(OutputInvalid):
            made.prompt("Which?", output=City, key="k")
    assert len(script.requests) == 2


def test_a_turn_that_failed_goes_on_and_keeps_its_type() -> None:
    made, script = session("no", ProviderUnavailable("down"), OSLO)
    with pytest.raises(ProviderUnavailable):
        made.prompt("Which?", output=City, key="k")
    assert made.continue_turn(output=City).output.people == 700000
    # The one correction was told before; it is not told again.
    assert sum(m.kind == NOTICE for m in made.history()) == 1
    assert made.prompt("Which?", output=City, key="k").output.people == 700000
    assert len(script.requests) == 3


def test_streams_give_the_text_and_the_value() -> None:
    made, _ = session(OSLO, "no", "no", OSLO)
    events = list(made.stream("Which?", output=City))
    text = " ".join(e.payload["text"] for e in events if e.type == "content")
    assert json.loads(text) == events[-1].payload["output"]
    with pytest.raises(OutputInvalid):
        list(made.stream("Which?", output=City))

    async def run() -> Any:
        return (await made.aprompt("Which?", output=City)).output

    assert asyncio.run(run()).name == "Oslo"


@pytest.mark.parametrize("wanted", ["City", {"type": "object"}, lambda: 1, 3])
def test_what_is_no_type(wanted: Any) -> None:
    made, _ = session()
    with pytest.raises(ConfigurationError, match="output is"):
        made.prompt("Which?", output=wanted)
    assert not made.stored.exists()


def test_the_prompt_says_what_is_asked_for_and_users_do_not_see_it() -> None:
    made, _ = session(OSLO)
    made.prompt("Which?", output=City)
    prompt = made.history()[0]
    assert prompt.content == "Which?"
    (part,) = prompt.parts or ()
    assert (part["type"], part["name"]) == ("output", "City")
    assert json.loads(part["schema"])["required"] == ["name", "people"]


def test_the_offline_model_fills_in_what_it_was_told() -> None:
    made = Session.resume(make_agent(name="Offline"), "u")
    made.prompt("My name is Oslo. My people is 700000.")
    assert made.prompt("Tell me about it.", output=City).output == City(name="Oslo", people=700000)
    given = made.prompt('Give me back {"x": 1, "y": 2}.', output=Point)
    assert given.output == Point(1, 2)
    assert made.prompt("Sum 1 and 2", output=list[int]).output == [1, 2]
    with pytest.raises(OutputInvalid):
        made.prompt("And the word?", output=Entry)
    assert "I was not told the word" in made.history()[-1].content


def test_schemas_that_a_provider_can_hold_to() -> None:
    made = response_format(Output.of(Country).part)["json_schema"]
    assert made["strict"] is True
    city = made["schema"]["$defs"]["City"]
    for schema, keys in ((made["schema"], ["capital", "others"]), (city, ["name", "people"])):
        assert schema["required"] == keys
        assert schema["additionalProperties"] is False
    # What not every provider understands is said in words, and checked.
    assert "minimum" not in json.dumps(made)
    assert "minimum" in Output.of(Country).schema
    open_ = response_format(Output.of(dict[str, int]).part)["json_schema"]
    assert open_["strict"] is False


@given(
    text=st.text(max_size=60) | st.sampled_from([OSLO, "[[[[", '{"a":' * 500, "```json\n{}\n```"])
)
def test_any_answer_is_a_value_or_unfit(text: str) -> None:
    for wanted in (City, list[int], str):
        with contextlib.suppress(Unfit):
            Output.of(wanted).parse(text)
