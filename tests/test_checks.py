from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks as django_checks
from django.db import connection, connections

from nexo_django import Agent, Pipeline, Session, checks, registry, tool
from nexo_django.exceptions import ConfigurationError
from nexo_django.middleware import (
    DefaultCompactionPipeline,
    DefaultToolPipeline,
    MaxIterations,
    SessionLog,
    SystemPrompt,
    ToolResultLoop,
)
from project.agents import Assistant

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/reference/checks.md").read_text()


@pytest.fixture(autouse=True)
def no_agents(monkeypatch):
    """Other tests' agents are none of these tests' business."""
    monkeypatch.setattr(registry, "_agents", {})


def ids(found):
    return [message.id.removeprefix("nexo_django.") for message in found]


def agent(**attributes: Any) -> type[Agent]:
    return type("Checked", (Agent,), attributes)


def stacked(*layers, app=print):
    """Make an agent of that stack."""

    def pipeline(self):
        made = Pipeline()
        for layer in layers:
            made.use(layer)
        return made.run(app) if app else made

    return agent(pipeline=pipeline)


@pytest.mark.django_db
def test_the_example_project_passes():
    registry.register(Assistant)
    assert django_checks.run_checks() == []


def test_an_agent_as_documented_passes():
    @tool
    def weather(city: str) -> str:
        """Current weather in a city."""
        return city

    agent(tools=[weather], instructions="Be brief.")
    assert checks.check_agents() == []


def test_wrong_settings(settings):
    settings.NEXO = {"TIMEOUT": 0, "TIMEOUTT": 1}
    found = checks.check_settings()
    assert ids(found) == ["E001", "E001"]
    agent(max_turns=0)
    assert checks.check_agents() == []


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (None, []),
        ("nexo_django.Chat", []),
        ("nexo_django.chat", []),
        ("nexo_django.Chatt", ["E002"]),
        ("nowhere.Chat", ["E002"]),
        ("auth.User", ["E008"]),
    ],
)
def test_the_chat_model(settings, label, expected):
    settings.NEXO = {"SESSION_CHAT_MODEL": label}
    found = checks.check_settings()
    assert ids(found) == expected
    assert all(label in message.msg for message in found)


def test_two_agents_of_one_name():
    class One(Agent):
        name = "Same"

    class Two(Agent):
        name = "Same"

    (found,) = checks.check_agents()
    assert ids([found]) == ["E003"]
    assert "One" in found.msg
    assert "Two" in found.msg


def test_a_class_made_again_is_no_duplicate():
    agent()
    agent()
    assert checks.check_agents() == []


def positional(city, /):
    """Has a parameter that a model can't name."""


def unresolved(city: Nowhere):  # type: ignore[name-defined]  # noqa: F821
    """Has a type that is not there."""


def opaque(city: connection.__class__):
    """Has a type that JSON can't express."""


def fine(city: str):
    """Can be offered."""


@pytest.mark.parametrize(
    "tools", [[positional], [unresolved], [opaque], [fine, fine], ["weather"], [{"name": "x"}]]
)
def test_a_tool_that_can_not_be_offered(tools):
    agent(tools=tools)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E004"]
    assert found.obj.__name__ == "Checked"


@pytest.mark.parametrize(
    "attributes",
    [
        {"max_turns": 0},
        {"max_turns": "5"},
        {"max_turns": True},
        {"model": 7},
        {"context_window": "big"},
        {"context_window": 0},
        {"max_prompt_bytes": 0},
        {"options": []},
        {"options": None},
    ],
)
def test_a_declaration_that_can_not_work(attributes):
    made = agent(**attributes)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E005"]
    with pytest.raises(ConfigurationError) as refused:
        Session.resume(made, "user-1").prompt("Hello.")
    assert str(refused.value) == found.msg


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (tool(fine), "Checked.tools is the tool 'fine'; put it in a list: [fine]."),
        (fine, "Checked.tools is the tool 'fine'; put it in a list: [fine]."),
        ("fine", "Checked.tools is a string; give a list of tools."),
        ({"fine": fine}, "Checked.tools is a dictionary; give a list of tools."),
        (5, "Checked.tools is 5; give a list of tools."),
    ],
)
def test_tools_that_are_no_list(tools, said):
    # A function in a class would be a method.
    made = agent(tools=staticmethod(tools) if tools is fine else tools)
    (found,) = checks.check_agents()
    assert (ids([found]), found.msg) == (["E005"], said)
    with pytest.raises(ConfigurationError, match=r"Checked\.tools"):
        Session.resume(made, "user-1").prompt("Hello.")


def test_a_model_that_looks_like_ours():
    made = agent(model="nexo/ofline")
    (found,) = checks.check_agents()
    assert ids([found]) == ["E005"]
    assert found.msg == "There is no model 'nexo/ofline'. Did you mean 'nexo/offline'?"
    with pytest.raises(ConfigurationError, match="Did you mean 'nexo/offline'"):
        Session.resume(made, "user-1").prompt("Hello.")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("instruction", "instructions"), ("tool", "tools"), ("max_turn", "max_turns")],
)
def test_a_misspelled_attribute(name, meant):
    agent(**{name: None})
    (found,) = checks.check_agents()
    assert ids([found]) == ["W004"]
    assert found.msg == f"Checked.{name} is no attribute of an agent. Did you mean {meant!r}?"


def test_attributes_of_ones_own_are_no_mistake():
    agent(tenant=3, price=1, _tool=4, helper=lambda self: None, model=None, system_prompt=print)
    assert checks.check_agents() == []


def untyped(city, days: int = 1):
    """Has a parameter without a type."""


def unsaid(city: str):
    return city


def described(city):
    """Weather.

    Args:
        city: The city's name.
    """


@pytest.mark.parametrize(
    ("function", "lacks"), [(untyped, "no type for 'city':"), (unsaid, "no docstring:")]
)
def test_a_tool_that_tells_too_little(function, lacks):
    agent(tools=[function])
    (found,) = checks.check_agents()
    assert ids([found]) == ["W005"]
    assert lacks in found.msg
    assert "nothing to go by" in found.msg


def test_a_tool_that_is_described_needs_no_types():
    agent(tools=[described])
    assert checks.check_agents() == []


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"permissions": "root"}, "no permissions mode 'root'; the modes are read_only, auto"),
        ({"mcp_allow": "server/tool"}, "give a list of names"),
    ],
)
def test_permissions_that_can_not_be(attributes, said):
    agent(**attributes)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E005"]
    assert said in found.msg


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((SystemPrompt, SessionLog, ToolResultLoop), "SessionLog must be the outermost"),
        ((SystemPrompt, ToolResultLoop), "SessionLog must be the outermost"),
        ((SessionLog, DefaultCompactionPipeline, ToolResultLoop), "DefaultCompactionPipeline must"),
        ((SessionLog, DefaultToolPipeline, ToolResultLoop), "DefaultToolPipeline must"),
        ((SessionLog, MaxIterations, ToolResultLoop), "MaxIterations must"),
    ],
)
def test_an_order_that_can_not_work(layers, said):
    stacked(*layers)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E006"]
    assert said in found.msg


def test_a_stack_without_a_model():
    stacked(SessionLog, app=None)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E006"]
    assert "terminal app" in found.msg


def test_a_stack_that_can_not_be_made():
    def pipeline(self):
        raise KeyError("tenant")

    agent(pipeline=pipeline)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E006"]
    assert "KeyError" in found.msg


@pytest.mark.parametrize("given", [None, "a pipeline"])
def test_a_pipeline_that_is_none(given):
    made = agent(pipeline=lambda self: given)
    (found,) = checks.check_agents()
    assert ids([found]) == ["E006"]
    assert found.msg == f"Checked.pipeline() returned {given!r}; return the Pipeline."
    with pytest.raises(ConfigurationError, match=r"Checked\.pipeline\(\) returned"):
        Session.resume(made, "user-1").prompt("Hello.")


class OwnLoop(ToolResultLoop):
    pass


class Unrelated:
    pass


@pytest.mark.parametrize(
    "layers",
    [
        (SessionLog, SystemPrompt, ToolResultLoop, MaxIterations, DefaultToolPipeline),
        (SessionLog, Unrelated, OwnLoop, Unrelated, DefaultCompactionPipeline),
        (SessionLog, DefaultToolPipeline),
        (SessionLog,),
    ],
)
def test_an_order_that_works(layers):
    stacked(*layers)
    assert checks.check_agents() == []


def test_a_subclass_is_known_by_its_base():
    stacked(SessionLog, DefaultToolPipeline, OwnLoop)
    assert ids(checks.check_agents()) == ["E006"]


def test_an_agent_whose_constructor_needs_arguments_is_left_alone():
    def __init__(self, tenant):
        self.tenant = tenant

    agent(__init__=__init__, max_turns=0)
    assert checks.check_agents() == []


SQLITE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
MYSQL = {"ENGINE": "django.db.backends.mysql", "OPTIONS": {}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SQLITE, []),
        (MYSQL, []),
        ({"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": 0}, []),
        ({**SQLITE, "ATOMIC_REQUESTS": True}, ["W001"]),
        ({**SQLITE, "CONN_MAX_AGE": 600}, ["W002"]),
        ({**SQLITE, "CONN_MAX_AGE": None}, ["W002"]),
        ({**SQLITE, "OPTIONS": {}}, ["W003"]),
        ({**SQLITE, "OPTIONS": {"transaction_mode": "EXCLUSIVE"}}, []),
        ({**MYSQL, "OPTIONS": {"charset": "utf8mb4"}}, []),
        ({**MYSQL, "OPTIONS": {"charset": "latin1"}}, ["W007"]),
    ],
)
def test_how_a_database_is_configured(settings, monkeypatch, config, expected):
    settings.ASGI_APPLICATION = "project.asgi.application"
    monkeypatch.setitem(connections.settings, "default", {"CONN_MAX_AGE": 0, **config})
    assert ids(checks.check_databases()) == expected


def test_connections_may_be_kept_without_asgi(settings, monkeypatch):
    monkeypatch.setitem(connections.settings, "default", {**SQLITE, "CONN_MAX_AGE": 600})
    assert checks.check_databases() == []


@pytest.mark.django_db
def test_the_tests_database_passes():
    assert checks.check_connected_databases(databases=["default"]) == []
    assert checks.check_connected_databases(databases=None) == []


def test_a_sqlite_file_without_a_write_ahead_log(tmp_path):
    (tmp_path / "plain_settings.py").write_text(
        "from project.settings import *\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'plain.sqlite3',"
        " 'OPTIONS': {'transaction_mode': 'IMMEDIATE'}}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "django", "check", "--database", "default"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "plain_settings",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "(nexo_django.W003)" in done.stderr
    assert "write-ahead log" in done.stderr


def test_each_id_is_documented_and_its_hint_leads_there():
    source = (ROOT / "nexo_django/checks.py").read_text()
    used = set(re.findall(r'problem\(\s*"([EW]\d{3})"', source))
    assert used == set(re.findall(r"`nexo_django\.([EW]\d{3})`", PAGE))
    assert used == set(re.findall(r"^### ([EW]\d{3})$", PAGE, flags=re.MULTILINE))
    for number in used:
        message = checks.problem(number, "What happened.", "Do this.")
        assert message.hint == f"Do this. ({number} in nexo_django's docs/reference/checks.md)"
        assert (message.level == django_checks.ERROR) == number.startswith("E")


def test_they_run_with_django_check():
    registered = django_checks.registry.registry.get_checks(include_deployment_checks=True)
    for check in (checks.check_settings, checks.check_agents, checks.check_databases):
        assert check in registered
    assert checks.check_connected_databases in registered
