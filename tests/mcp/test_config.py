"""What an agent may declare of its servers, and that no text shows what is secret in it."""

from __future__ import annotations

import importlib.util

import pytest

from nexo_django import Session, checks
from nexo_django.exceptions import ConfigurationError
from nexo_django.mcp import background, config
from tests.mcp.support import faulty
from tests.support import Script, make_agent

SECRET = "sekret-0123456789"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "A.mcp is a list; give a dictionary"),
        ({5: {}}, "A.mcp has a server named 5"),
        ({"a/b": {}}, "A.mcp has a server named 'a/b'"),
        ({"": {}}, "A.mcp has a server named ''"),
        ({"x" * 33: {}}, "a name is 1 to 32"),
        ({"s": "mcp-server-time"}, 'A.mcp["s"] is a str; give'),
        ({"s": {}}, 'A.mcp["s"] needs either a command or a url.'),
        ({"s": {"command": "a", "url": "http://b"}}, "needs either a command or a url"),
        ({"s": {"comand": "a"}}, "has no key 'comand'. Did you mean 'command'?"),
        ({"s": {"command": ""}}, "has a wrong command"),
        ({"s": {"command": ["a", "b"]}}, "has a wrong command"),
        ({"s": {"command": "a", "args": "-v"}}, "has a wrong args; it must be a list of texts"),
        ({"s": {"command": "a", "args": [SECRET, 5]}}, "has a wrong args"),
        ({"s": {"command": "a", "args": ["\x00"]}}, "has a wrong args"),
        ({"s": {"command": "a", "env": {"KEY": None, "B": SECRET}}}, "has a wrong env"),
        ({"s": {"command": "a", "env": {"A=B": "c"}}}, "has a wrong env"),
        ({"s": {"command": "a", "cwd": 5}}, "has a wrong cwd"),
        ({"s": {"command": "a", "token": SECRET}}, "a command, which goes without token"),
        ({"s": {"url": "http://b", "args": [], "cwd": ""}}, "a url, which goes without args, cwd"),
        ({"s": {"url": "ftp://b"}}, "has a wrong url"),
        ({"s": {"url": "b/mcp"}}, "has a wrong url"),
        ({"s": {"url": f"https://user:{SECRET}@b"}}, "without a password in it"),
        ({"s": {"url": "http://[::1"}}, "has a wrong url"),
        ({"s": {"url": "http://b:99999"}}, "has a wrong url"),
        ({"s": {"url": "http://b", "headers": {"A": f"{SECRET}\r\nB: c"}}}, "wrong headers"),
        ({"s": {"url": "http://b", "headers": {"A:": SECRET}}}, "has a wrong headers"),
        ({"s": {"url": "http://b", "headers": [SECRET]}}, "has a wrong headers"),
        ({"s": {"url": "http://b", "token": f"{SECRET}\n"}}, "has a wrong token"),
        ({"s": {"url": "http://b", "token": ""}}, "has a wrong token"),
        (
            {"s": {"url": "http://b", "token": SECRET, "headers": {"authorization": "x"}}},
            "without Authorization where there is a token",
        ),
        ({"s": {"command": "a", "timeout": 0}}, "has a wrong timeout"),
        ({"s": {"command": "a", "timeout": True}}, "has a wrong timeout"),
        ({"s": {"command": "a", "timeout": float("nan")}}, "has a wrong timeout"),
    ],
)
def test_what_is_refused(given, said):
    with pytest.raises(ConfigurationError) as refused:
        config.servers("A", given)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_wrong_server_is_told_by_the_check_and_the_prompt():
    agent = make_agent(Script(), name="Checked", mcp={"s": {"command": 5}})
    with pytest.raises(ConfigurationError) as refused:
        Session.resume(agent, "1").prompt("Hello.")
    found = [message for message in checks.check_agents() if message.obj is agent]
    assert [(m.id, m.msg) for m in found] == [("nexo_django.E005", str(refused.value))]


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert importlib.util.find_spec("mcp") is not None
    with pytest.raises(ConfigurationError, match=r'pip install "nexo-django\[mcp\]"'):
        config.servers("A", {"s": {"command": "a"}})
    assert config.servers("A", {}) == {}


def test_a_check_warns_of_servers_that_nothing_lets_be_used():
    servers = {"used": faulty(), "unused": faulty()}
    allowed = ["used/pid", "used", "other/tool"]
    agent = make_agent(Script(), name="Checked", mcp=servers, mcp_allow=allowed)
    found = [message for message in checks.check_agents() if message.obj is agent]
    assert [message.id for message in found] == ["nexo_django.W021"] * 3
    assert "'unused'" in found[0].msg
    assert "'used'" in found[1].msg
    assert "'other/tool'" in found[2].msg
    # A check starts no servers.
    assert not background._owned


def test_secrets_are_no_part_of_what_is_shown():
    given = {
        "a": {"url": f"https://h/?key={SECRET}", "headers": {"X": SECRET}, "token": SECRET},
        "b": {"command": "run", "args": ["--key", SECRET], "env": {"KEY": SECRET}},
    }
    servers = config.servers("A", given)
    assert SECRET not in repr(servers)
    assert servers["a"].redacted(f"no {SECRET} here") == "no *** here"
    assert servers["b"].redacted(f"no {SECRET} here") == "no *** here"


@pytest.mark.parametrize("wrong", [5, "two\nlines", b"bytes"])
def test_a_token_function_that_gives_no_token(wrong):
    server = config.servers("A", {"s": {"url": "http://b", "token": lambda: wrong}})["s"]
    with pytest.raises(Exception, match="is no text for a header"):
        server.resolve()
