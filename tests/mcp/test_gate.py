"""Which tools of a server are offered and allowed, and when a server is connected at all."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from nexo_django import Session, tool
from nexo_django.mcp import background
from nexo_django.permissions import Permissions
from tests.mcp.support import faulty
from tests.support import Script, asking, call, make_agent


def names(env) -> str:
    return " ".join(tool.name for tool in env.tools)


def results(session: Session) -> list[str]:
    return [m.content or "" for m in session.history() if m.role == "tool"]


def test_read_only_offers_what_is_named(resumed):
    session = resumed(
        {"bad": faulty(), "closed": faulty()},
        names,
        asking(call("bad__environment"), call("closed__pid")),
        permissions="read_only",
        mcp_allow=["bad/pid", "bad/slow"],
    )
    assert session.prompt("Go.").content == "bad__pid bad__slow read_output"
    assert len(background._owned) == 1
    session.prompt("Go on.")
    assert [m.is_error for m in session.history() if m.role == "tool"] == [True, True]
    assert len(background._owned) == 1


def test_without_a_permission_nothing_is_connected(resumed):
    session = resumed({"bad": faulty()}, names, permissions="read_only")
    assert session.prompt("Go.").content == ""
    assert not background._owned


def test_a_star_allows_a_server(resumed):
    session = resumed({"bad": faulty()}, names, permissions="read_only", mcp_allow=["bad/*"])
    assert "bad__environment" in session.prompt("Go.").content


def test_ask_decides_by_each_call(resumed):
    asked = []

    def decide(capability, detail):
        asked.append((capability, detail["tool"], detail["arguments"]))
        return detail["tool"] == "bad__pid"

    session = resumed(
        {"bad": faulty()},
        asking(call("bad__pid"), call("bad__slow", seconds=0)),
        permissions=Permissions("ask", on_ask=decide),
    )
    session.prompt("Go.")
    allowed, denied = results(session)
    assert int(allowed)
    assert "slow" in denied
    assert ("mcp", "bad__slow", {"seconds": 0}) in asked


def test_approve_stops_until_somebody_decides(resumed):
    step = asking(call("bad__pid"))
    session = resumed({"bad": faulty()}, step, permissions="approve")
    assert session.prompt("Go.").status == "awaiting_approval"
    session.close()
    session.approve(step.tool_calls[0].id, by="admin")
    assert session.continue_turn().content == "done"
    assert int(results(session)[0])


def test_a_tool_of_ones_own_keeps_its_name(resumed):
    @tool(name="bad__pid")
    def own() -> str:
        """The host's own."""
        return "mine"

    session = resumed({"bad": faulty()}, names, asking(call("bad__pid")), tools=[own])
    offered = session.prompt("Go.").content.split()
    assert offered.count("bad__pid") == 1
    assert any(name.startswith("bad__pid_") for name in offered)
    session.prompt("Go.")
    assert results(session) == ["mine"]


def test_two_servers_may_have_tools_of_one_name(resumed):
    session = resumed({"a.b": faulty(), "a_b": faulty()}, names)
    offered = [name for name in session.prompt("Go.").content.split() if name.startswith("a_b__")]
    assert len(offered) == len(set(offered)) == 2 * 11


def test_no_connection_before_the_first_turn_nor_for_a_compaction(resumed):
    session = resumed({"bad": faulty()}, "one")
    assert not background._owned
    session.prompt("Go.")
    session.close()
    session.compact(dry_run=True)
    assert not background._owned


def test_the_tools_are_the_same_in_every_turn(resumed):
    session = resumed({"bad": faulty()}, names, names, names)
    first = session.prompt("Go.").content
    assert session.prompt("Go.").content == first
    session.close()
    assert session.prompt("Go.").content == first


def test_an_event_loop_is_not_blocked(resumed):
    session = resumed({"bad": faulty("mute", timeout=2)})

    async def main() -> int:
        ticks = 0
        task = asyncio.ensure_future(session.aprompt("Go."))
        while not task.done():
            await asyncio.sleep(0.05)
            ticks += 1
        await task
        return ticks

    assert asyncio.run(main()) >= 10


def test_prompts_from_an_event_loop(resumed):
    session = resumed({"bad": faulty()})

    async def main() -> None:
        with pytest.raises(Exception, match="Method not found"):
            await session.amcp_prompt("bad", "any")
        with pytest.raises(Exception, match="There is no MCP server 'no'"):
            await session.amcp_prompt("no", "any")

    asyncio.run(main())


@pytest.mark.django_db(transaction=True)
def test_servers_cost_no_statement():
    def statements(**attributes) -> int:
        agent = make_agent(Script(), name=f"Cost{len(attributes)}", **attributes)
        with Session.resume(agent, "1") as session:
            session.prompt("warm up")
            with CaptureQueriesContext(connection) as captured:
                session.prompt("next")
        return len(captured)

    with override_settings(NEXO={}):
        plain = statements()
        assert statements(mcp={"bad": faulty()}, permissions="auto") == plain
