from __future__ import annotations

import pytest
from django.test import override_settings
from django.utils.translation import gettext_lazy

from nexo_django.agent import Context
from nexo_django.exceptions import ConfigurationError
from tests.support import make_agent


def told(agent):
    return agent.system_text(Context(agent, agent.name, "user-1"))


def by_function(context):
    return f"for {context.instance_id}"


def with_default(context, language="en"):
    return f"for {context.instance_id} in {language}"


class ByCall:
    def __call__(self, context):
        return f"called for {context.agent_name}"


@pytest.mark.parametrize(
    ("instructions", "text"),
    [
        ("Be brief.", "Be brief."),
        (by_function, "for user-1"),
        (lambda self, context: f"{self.name} for {context.instance_id}", "Scripted for user-1"),
        (staticmethod(by_function), "for user-1"),
        (classmethod(lambda cls, context: cls.name), "Scripted"),
        (ByCall(), "called for Scripted"),
        (None, ""),
        (lambda context: None, ""),
        (gettext_lazy("Yes"), "Yes"),
        (property(lambda self: f"I am {self.name}."), "I am Scripted."),
        (with_default, "for user-1 in en"),
    ],
)
def test_instructions_are_text_or_a_callable_of_the_context(instructions, text):
    assert told(make_agent(instructions=instructions)()) == text


def test_instructions_given_to_resume_override_the_class():
    assert told(make_agent(instructions="a")(instructions=by_function)) == "for user-1"


@pytest.mark.parametrize("instructions", [5, lambda context: 5, lambda context: b"x"])
def test_instructions_that_are_no_text_are_refused(instructions):
    with pytest.raises(ConfigurationError, match=r"Scripted\.instructions"):
        told(make_agent(instructions=instructions)())


def test_wrong_instructions_are_seen_before_a_turn():
    with pytest.raises(ConfigurationError, match=r"Scripted\.instructions"):
        make_agent(instructions=5)().check()


@pytest.mark.parametrize("model", ["openai/" + "m" * 300, "openai/\ud800", "openai/a\x00"])
def test_a_model_id_that_can_not_be_stored_is_refused(model):
    with pytest.raises(ConfigurationError, match=r"255 characters|can.t be stored"):
        make_agent(model=model)().check()


def test_tools_from_a_generator_last_for_every_turn():
    agent = make_agent()(tools=(tool for tool in [lookup]))
    assert len(agent.offered()) == len(agent.offered()) == 2


def test_an_override_is_of_the_instance_only():
    agent = make_agent(max_turns=3)
    assert agent(max_turns=9).max_turns == 9
    assert agent().max_turns == 3


def test_an_unknown_override_names_those_there_are():
    with pytest.raises(TypeError, match="'temprature'; it takes model, instructions"):
        make_agent()(temprature=1)


def test_the_model_is_the_settings_default():
    with override_settings(NEXO={"DEFAULT_MODEL": "openai/some"}):
        assert make_agent(model=None)().model_id == "openai/some"


@pytest.mark.parametrize("model", ["  ", 5])
def test_a_model_that_is_no_text_is_refused(model):
    with pytest.raises(ConfigurationError, match="give a litellm id"):
        make_agent(model=model)().check()


@pytest.mark.parametrize("value", ["root", "", 5, ["auto"]])
def test_permissions_that_there_are_none_of(value):
    with pytest.raises(ConfigurationError, match=r"Scripted\.permissions: .*read_only, auto, ask"):
        make_agent(permissions=value)().check()


def test_the_values_of_the_contract_pass():
    make_agent(
        sandbox="virtual", permissions="read_only", skills=[], mcp={}, fetch_allow=[]
    )().check()


@pytest.mark.parametrize("turns", [0, -1, "5"])
def test_max_turns_is_at_least_one(turns):
    with pytest.raises(ConfigurationError, match="at least 1"):
        make_agent(max_turns=turns)().check()


def test_read_output_is_offered_beside_declared_tools_only():
    assert make_agent()().offered() == []
    offered = make_agent(tools=[lookup])().offered()
    assert [tool.name for tool in offered] == ["lookup", "read_output"]
    own = make_agent(tools=[own_read_output, lookup])().offered()
    assert [tool.name for tool in own] == ["read_output", "lookup"]


def lookup(word: str) -> str:
    """Look a word up."""
    return word


def own_read_output(id: str) -> str:
    """Read the host's own outputs."""
    return id


own_read_output.__name__ = "read_output"
