"""What a call may do, by mode, capability and the host's own functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django import Tool, tool
from nexo_django.exceptions import ConfigurationError, TurnCancelled
from nexo_django.permissions import (
    AUTO,
    CAPABILITIES,
    GLOB,
    MODES,
    READ,
    READ_ONLY,
    WRITE,
    Permissions,
    Verdict,
    declared,
)
from tests.support import make_agent


def gated(capability=None, mcp=None):
    made = Tool(lambda: "x", name="gated", description="x", parameters={"type": "object"})
    made.capability, made.mcp = capability, mcp
    return made


HOST = gated()


@given(
    mode=st.sampled_from(MODES),
    allow=st.sets(st.sampled_from(CAPABILITIES)),
    capability=st.sampled_from([None, *CAPABILITIES]),
    answers=st.sampled_from([None, True, False]),
)
def test_the_table_of_modes(mode, allow, capability, answers):
    on_ask = None if answers is None else lambda capability, detail: answers
    permissions = Permissions(mode, allow, on_ask=on_ask)
    verdict = permissions.judge(gated(capability), {})
    expected = {
        "read_only": Verdict.DENY,
        "auto": Verdict.ALLOW,
        "ask": Verdict.ALLOW if answers else Verdict.DENY,
        "approve": Verdict.DECIDE,
    }[mode]
    if capability is None or capability in allow:
        expected = Verdict.ALLOW
    assert verdict is expected
    if not permissions.offers(gated(capability)):
        assert verdict is Verdict.DENY
    both = min(verdict, Permissions(READ_ONLY, ()).judge(gated(capability), {}))
    assert both is (Verdict.ALLOW if capability is None else Verdict.DENY)


def test_reading_is_allowed_unless_it_is_taken_away():
    assert Permissions().judge(gated(READ), {}) is Verdict.ALLOW
    assert Permissions().judge(gated(GLOB), {}) is Verdict.ALLOW
    assert Permissions(allow=()).judge(gated(READ), {}) is Verdict.DENY


@pytest.mark.parametrize("mode", MODES)
def test_tools_of_servers_pass_by_their_name_in_every_mode(mode):
    named = Permissions(mode, mcp_allow=["time/now"])
    assert named.judge(gated(mcp="time/now"), {}) is Verdict.ALLOW
    other = named.judge(gated(mcp="time/set"), {})
    assert other is {"auto": Verdict.ALLOW, "approve": Verdict.DECIDE}.get(mode, Verdict.DENY)
    # A capability is not the name of a server's tool.
    assert Permissions(mode, allow=[READ]).judge(gated(READ, "time/set"), {}) is other


def test_what_need_not_be_asked_is_allowed():
    asked = []

    def when(capability, detail):
        asked.append((capability, detail))
        return "secret" in detail["arguments"].values()

    permissions = Permissions("approve", ask_when=when)
    assert permissions.judge(gated(WRITE), {"path": "notes"}) is Verdict.ALLOW
    assert permissions.judge(gated(WRITE), {"path": "secret"}) is Verdict.DECIDE
    assert asked[0] == (WRITE, {"tool": "gated", "arguments": {"path": "notes"}})
    asked_all = Permissions("ask", on_ask=lambda *given: True, ask_when=when)
    assert asked_all.judge(gated(WRITE), {"path": "secret"}) is Verdict.ALLOW


def fails(capability, detail):
    raise RuntimeError("broken")


def test_a_function_that_fails_allows_nothing(caplog):
    assert Permissions("ask", on_ask=fails).judge(gated(WRITE), {}) is Verdict.DENY
    assert Permissions("approve", ask_when=fails).judge(gated(WRITE), {}) is Verdict.DECIDE
    assert Permissions(READ_ONLY, ask_when=fails).judge(gated(WRITE), {}) is Verdict.DENY
    assert "could not be asked for" in caplog.text


def test_a_signal_to_stop_passes_through():
    def stop(capability, detail):
        raise TurnCancelled

    with pytest.raises(TurnCancelled):
        Permissions("ask", on_ask=stop).judge(gated(WRITE), {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "root"}, "no permissions mode 'root'; the modes are read_only, auto, ask"),
        ({"mode": None}, "no permissions mode None"),
        ({"allow": "read"}, "allow is 'read'; give a list"),
        ({"allow": ["sudo"]}, "capability 'sudo'; the capabilities are read, glob, write"),
        ({"allow": [5]}, "holds 5"),
        ({"mcp_allow": "a/b"}, "mcp_allow is 'a/b'"),
        ({"on_ask": True}, "on_ask is True; give a function"),
        ({"ask_when": "always"}, "ask_when is 'always'"),
    ],
)
def test_what_can_not_be_meant_is_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        Permissions(**arguments)


def test_a_tool_of_a_capability_that_there_is_none_of():
    with pytest.raises(ConfigurationError, match="'root'; the capabilities are read, glob"):
        tool(capability="root")(lambda: "x")


def test_what_an_agent_declares():
    assert declared("auto").mode == AUTO
    mine = Permissions("approve", mcp_allow=["a/b"])
    assert declared(mine) is mine
    assert declared(mine, ["c/d"]).mcp_allow == ("a/b", "c/d")


def test_an_agent_is_granted_what_it_declares_now(settings):
    agent = make_agent()()
    assert agent.granted().mode == READ_ONLY
    settings.NEXO = {"DEFAULT_PERMISSIONS": "auto"}
    assert agent.granted().mode == AUTO
    settings.NEXO = {"DEFAULT_PERMISSIONS": Permissions("approve")}
    assert agent.granted().mode == "approve"
    type(agent).permissions = "read_only"
    assert agent.granted().mode == READ_ONLY


def test_only_what_can_be_allowed_is_offered():
    @tool(capability="write")
    def save(text: str) -> str:
        """Save a text."""
        return text

    @tool
    def own(text: str) -> str:
        """Do the host's own thing."""
        return text

    def names(**declared):
        offered = make_agent(tools=[save, own], sandbox=None, **declared)().offered()
        return [t.name for t in offered if t.name in ("save", "own")]

    assert names() == ["own"]
    assert names(permissions="ask") == ["own"]
    assert names(permissions=Permissions(allow=["write"])) == ["save", "own"]
    asks = Permissions("ask", on_ask=lambda *given: True)
    for value in ("auto", "approve", asks):
        assert names(permissions=value) == ["save", "own"]


@pytest.mark.parametrize("name", ["questoin", "nothing-like-it"])
def test_a_built_in_tool_that_there_is_none_of(name):
    with pytest.raises(ConfigurationError, match=r"Did you mean 'question'|They are "):
        make_agent(tools=[name])().offered()
