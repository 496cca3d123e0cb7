"""Servers that die, flood, hang, lie and crash: the turn goes on, and nothing is left running."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.test import override_settings

from nexo_django import Session
from nexo_django.exceptions import LimitExceeded
from nexo_django.mcp import background
from tests.completion.peers import needs
from tests.mcp import web
from tests.mcp.support import EVERYTHING, faulty, gone, until
from tests.support import asking, call

ROOT = Path(__file__).resolve().parents[2]
SECRET = "sekret-0123456789"


def results(session: Session) -> list[str]:
    return [m.content or "" for m in session.history() if m.role == "tool"]


def pid_of(session: Session) -> int:
    """Ask the faulty server who it is."""
    found = session.agent.mcp_servers().request("bad", lambda c: c.call_tool("pid", {}))
    return int(found.content[0].text)


def test_a_server_that_dies_in_mid_call_is_started_anew(resumed):
    session = resumed(
        {"bad": faulty()},
        asking(call("bad__pid")),
        asking(call("bad__die")),
        asking(call("bad__pid")),
    )
    assert session.prompt("Go.").content == "done"
    before, died, after = results(session)
    assert died == "The MCP server 'bad' ended before it answered."
    assert before != after
    assert gone(int(before))


@needs(EVERYTHING)
def test_a_real_server_killed_in_mid_call(resumed):
    def kill(type: str, payload: dict) -> None:
        if type == "tool_call" and payload["name"].endswith("operation"):
            (process,) = background._owned
            threading.Timer(0.3, os.kill, (process.popen.pid, signal.SIGKILL)).start()

    session = resumed(
        {"all": {"command": str(EVERYTHING)}},
        asking(call("all__trigger-long-running-operation", duration=120, steps=2)),
        asking(call("all__echo", message="here again")),
    )
    session.prompt("Work long.", on_event=kill)
    killed, again = results(session)
    assert "ended before it answered" in killed
    assert again == "Echo: here again"


def test_a_server_that_dies_between_two_turns_is_reaped_and_started_anew(resumed):
    session = resumed({"bad": faulty()}, "one", asking(call("bad__pid")))
    session.prompt("Go.")
    pid = pid_of(session)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    session.prompt("Go on.")
    assert int(results(session)[0]) != pid


@pytest.mark.parametrize("tool", ["flood", "notify"])
def test_a_flood_is_cut_off(resumed, tool):
    session = resumed({"bad": faulty()}, asking(call(f"bad__{tool}")), asking(call("bad__pid")))
    session.prompt("Go.")
    flooded, after = results(session)
    assert "sent more than 8388608 bytes" in flooded
    assert int(after)


def test_a_large_answer_passes_and_is_cut_as_any_tools_is(resumed):
    session = resumed({"bad": faulty()}, asking(call("bad__big", megabytes=5)))
    session.prompt("Go.")
    (shown,) = results(session)
    assert len(shown) <= 51_200
    assert "read_output" in shown


def test_what_is_no_message_is_passed_over(resumed):
    session = resumed({"bad": faulty()}, asking(call("bad__chatter")))
    session.prompt("Go.")
    assert results(session) == ["and the answer"]


def test_a_call_that_is_never_answered_ends(resumed):
    session = resumed(
        {"bad": faulty(timeout=5)}, asking(call("bad__hang")), asking(call("bad__pid"))
    )
    session.prompt("Go.")
    hung, after = results(session)
    assert "did not answer within 5 seconds" in hung
    # It answers nothing at all, so it was started anew.
    assert int(after)


def test_a_slow_call_that_is_given_up_does_not_take_the_server_down(resumed):
    slow = call("bad__slow", seconds=7)
    session = resumed(
        {"bad": faulty(timeout=5)}, asking(call("bad__pid")), asking(slow), asking(call("bad__pid"))
    )
    session.prompt("Go.")
    before, given_up, after = results(session)
    assert "did not answer" in given_up
    assert before == after


def test_a_cancelled_turn_does_not_wait_for_a_server(resumed):
    def cancel(type: str, payload: dict) -> None:
        if type == "tool_call":
            threading.Timer(0.2, session.cancel).start()

    session = resumed({"bad": faulty()}, asking(call("bad__hang")))
    assert session.prompt("Go.", on_event=cancel).status == "cancelled"


def test_a_deadline_is_kept_while_a_server_is_waited_for(resumed):
    session = resumed({"bad": faulty()}, asking(call("bad__hang")))
    settings = {"SESSION_STORE": "memory", "TURN_DEADLINE": 2}
    with override_settings(NEXO=settings), pytest.raises(LimitExceeded):
        session.prompt("Go.")


@pytest.mark.parametrize("mode", ["mute", "crash"])
def test_a_turn_goes_on_without_a_server(resumed, caplog, mode):
    seen: dict[str, str] = {}

    def note(env):
        seen.update(env.metadata["mcp_unavailable"])
        return " ".join(tool.name for tool in env.tools)

    broken = faulty(mode, timeout=2, env={"API_KEY": SECRET})
    session = resumed({"broken": broken, "bad": faulty()}, note)
    offered = session.prompt("Go.").content.split()
    assert "bad__pid" in offered
    assert not [name for name in offered if name.startswith("broken")]
    assert "The MCP server 'broken'" in seen["broken"]
    assert "server=broken has no list of tools" in caplog.text
    assert SECRET not in caplog.text


def test_a_server_that_is_gone_keeps_the_tools_it_had(resumed, folder):
    script = folder / "server.py"
    script.write_text(Path(faulty()["args"][0]).read_text())
    servers = {"bad": {"command": sys.executable, "args": [str(script)]}}
    session = resumed(servers, "fine", asking(call("bad__pid")))
    session.prompt("Go.")
    session.close()
    script.write_text("raise SystemExit(1)")
    session.prompt("Go on.")
    assert "could not be reached" in results(session)[0]


def test_a_program_that_is_not_there(resumed):
    errors: dict[str, str] = {}
    session = resumed(
        {"no": {"command": "no-such-program"}},
        lambda env: errors.update(env.metadata["mcp_unavailable"]) or "ok",
    )
    session.prompt("Go.")
    assert errors["no"] == (
        "The MCP server 'no' could not be started: No such file or directory: no-such-program."
    )


def test_a_folder_that_is_not_there(resumed):
    errors: dict[str, str] = {}
    session = resumed(
        {"bad": faulty(cwd="/no/such/folder")},
        lambda env: errors.update(env.metadata["mcp_unavailable"]) or "ok",
    )
    session.prompt("Go.")
    assert "/no/such/folder" in errors["bad"]


def test_a_server_that_lists_a_tool_more_than_once(resumed):
    servers = {"bad": faulty("thrice"), "good": faulty()}
    session = resumed(servers, lambda env: " ".join(tool.name for tool in env.tools))
    names = session.prompt("Go.").content.split()
    assert [n for n in names if n.startswith("bad")] == [
        n.replace("good", "bad") for n in names if n.startswith("good")
    ]


def test_the_environment_of_a_server_is_clean(resumed, monkeypatch):
    monkeypatch.setenv("DJANGO_SECRET_KEY", "the site's secret")
    session = resumed({"bad": faulty(env={"API_KEY": SECRET})}, asking(call("bad__environment")))
    session.prompt("Go.")
    environment = json.loads(results(session)[0])
    assert environment["API_KEY"] == SECRET
    assert "the site's secret" not in environment.values()
    assert set(environment) <= {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
        "API_KEY",
    }


def test_errors_and_logs_show_no_secret(resumed, caplog):
    caplog.set_level(logging.DEBUG, "nexo_django")
    session = resumed({"bad": faulty(env={"API_KEY": SECRET})}, asking(call("bad__fail")))
    session.prompt("Go.")
    assert results(session) == ["The MCP server 'bad' gave an error: the key is ***"]
    assert SECRET not in caplog.text
    assert SECRET not in repr(session.agent.mcp_servers()._entries["bad"].server)


def test_close_ends_the_server_and_what_it_started(resumed):
    session = resumed({"bad": faulty()}, asking(call("bad__child"), call("bad__pid")))
    session.prompt("Go.")
    child, server = map(int, results(session))
    assert not gone(child)
    session.close()
    session.close()
    assert gone(server)
    until(lambda: gone(child))


def test_an_abandoned_session_leaves_no_server(resumed):
    from nexo_django.permissions import Permissions
    from tests.support import Script, make_agent

    agent = make_agent(Script(), mcp={"bad": faulty()}, permissions=Permissions("auto"))
    session = Session.resume(agent, "left")
    session.prompt("Go.")
    pid = pid_of(session)
    del session
    gc.collect()
    until(lambda: gone(pid))


def run(code: str) -> subprocess.CompletedProcess[str]:
    prelude = """
import os, sys, django
from django.conf import settings
settings.configure(NEXO={"SESSION_STORE": "memory"})
from nexo_django import Session
from tests.mcp.support import faulty, gone
from tests.mcp.test_faults import pid_of
from tests.support import Script, make_agent
agent = make_agent(Script(), mcp={"bad": faulty()}, permissions="auto")
session = Session.resume(agent, "1")
session.prompt("Go.")
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_end_of_the_interpreter_ends_the_servers():
    done = run("print(pid_of(session))")
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))


def test_a_killed_process_leaves_no_server():
    done = run("print(pid_of(session), flush=True); os.kill(os.getpid(), 9)")
    assert done.returncode == -signal.SIGKILL
    until(lambda: gone(int(done.stdout)))


def test_a_forked_child_has_servers_of_its_own():
    done = run("""
mine = pid_of(session)
if (child := os.fork()) == 0:
    other = pid_of(session)
    assert other != mine
    session.close()
    assert gone(other) and not gone(mine)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert pid_of(session) == mine
print("fine")
""")
    assert done.stdout == "fine\n", done.stderr


def test_a_child_does_not_keep_its_parents_servers_alive():
    done = run("""
if (child := os.fork()) == 0:
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    import time; time.sleep(600); os._exit(0)
print(pid_of(session), child, flush=True)
os.kill(os.getpid(), 9)
""")
    server, child = map(int, done.stdout.split())
    try:
        until(lambda: gone(server))
        assert not gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_parallel_calls_share_one_server(resumed):
    session = resumed({"bad": faulty()}, asking(*[call("bad__pid") for _ in range(20)]))
    session.prompt("Go.")
    assert len(set(results(session))) == 1


def test_a_dead_server_fails_only_the_calls_under_way(resumed):
    calls = [call("bad__pid"), call("bad__die"), call("bad__pid"), call("bad__pid")]
    session = resumed({"bad": faulty()}, asking(*calls), asking(call("bad__pid")))
    session.prompt("Go.")
    assert "ended before it answered" in results(session)[1]
    assert int(results(session)[-1])


@pytest.fixture
def site():
    with web.running() as server:
        yield server


def test_the_token_is_asked_for_each_time(resumed, site):
    tokens = iter(f"token-{number}" for number in range(100))
    servers = {
        "web": {"url": site.url, "token": lambda: next(tokens), "headers": {"X-Team": "blue"}}
    }
    session = resumed(servers, asking(call("web__whoami")), asking(call("web__whoami")))
    session.prompt("Go.")
    assert results(session) == ["Bearer token-1 blue", "Bearer token-2 blue"]


def test_a_refused_token_is_an_error_without_the_token(resumed, site, caplog):
    session = resumed({"web": {"url": site.url, "token": SECRET}}, asking(call("web__whoami")))
    session.prompt("Go.")
    site.token = "another"
    site.seen.clear()
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Exception, match="HTTP 401") as refused:
        session.agent.mcp_servers().request("web", lambda client: client.call_tool("whoami", {}))
    assert SECRET not in str(refused.value)
    assert SECRET not in caplog.text
    assert ("tools/call", f"Bearer {SECRET}") in site.seen


def test_a_token_that_can_not_be_had(resumed, site):
    def token() -> str:
        raise LookupError(SECRET)

    errors: dict[str, str] = {}
    session = resumed(
        {"web": {"url": site.url, "token": token}},
        lambda env: errors.update(env.metadata["mcp_unavailable"]) or "ok",
    )
    session.prompt("Go.")
    assert errors["web"] == "The token of the MCP server 'web' could not be had: LookupError."


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("flood", "sent more than 8388608 bytes"),
        ("flood_events", "sent more than 8388608 bytes"),
        ("bomb", "compressed"),
        ("broken", "HTTP 500"),
        ("away", "not followed"),
        ("hang", "did not answer within 4 seconds"),
    ],
)
def test_what_a_server_over_http_may_do_wrong(resumed, site, tool, said):
    session = resumed(
        {"web": {"url": site.url, "timeout": 4}},
        asking(call(f"web__{tool}")),
        asking(call("web__whoami")),
    )
    session.prompt("Go.")
    wrong, after = results(session)
    assert said in wrong
    assert after.strip() in ("", "(no content)")
    assert site.sent < 64_000_000
