from __future__ import annotations

import pytest

from nexo_django import Agent, registry
from nexo_django.exceptions import AgentNotRegistered, ConfigurationError


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_agents", {})


def test_a_class_is_registered_under_its_name():
    class Helper(Agent):
        pass

    class Other(Agent):
        name = "other-one"

    assert registry.agents() == {"Helper": Helper, "other-one": Other}
    assert registry.get("Helper") is Helper


def test_a_subclass_has_a_name_of_its_own():
    class Base(Agent):
        name = "base"

    class Child(Base):
        pass

    assert Child.name == "Child"


def test_an_abstract_class_is_not_registered_but_its_child_is():
    class Base(Agent):
        abstract = True

    class Child(Base):
        pass

    assert registry.agents() == {"Child": Child}


def test_an_unknown_name_says_what_there_is():
    class Assistant(Agent):
        pass

    with pytest.raises(AgentNotRegistered, match=r"'Asistant'. Did you mean 'Assistant'\?"):
        registry.get("Asistant")


def test_two_classes_of_one_name_are_told():
    type("First", (Agent,), {"name": "same", "__module__": "a"})
    type("Second", (Agent,), {"name": "same", "__module__": "b"})
    assert registry.duplicates() == {"same": ["a.First", "b.Second"]}


def test_a_class_made_again_replaces_itself():
    made = [type("Again", (Agent,), {"__module__": "a", "__qualname__": "Again"}) for _ in range(2)]
    assert registry.duplicates() == {}
    assert registry.get("Again") is made[1]


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, None, 5])
def test_a_name_that_can_not_be_stored_is_refused(name):
    with pytest.raises(ConfigurationError, match="1 to 100 characters"):
        type("Bad", (Agent,), {"name": name})
