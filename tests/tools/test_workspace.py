"""The tools of the workspace: what they do, what they refuse, and that nothing makes them crash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django import Session
from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.middleware import DefaultToolPipeline
from nexo_django.pipeline import Env
from nexo_django.sandbox.base import Sandbox
from nexo_django.sandbox.choice import resolve
from nexo_django.sandbox.local import LocalSandbox
from nexo_django.sandbox.virtual import VirtualSandbox
from nexo_django.tools.workspace import FILE_TOOLS, shell
from tests.sandbox.support import MAKERS, bubblewrap_problem, reachable
from tests.support import Script, asking, call, make_agent

TOOLS = {tool.name: tool for tool in [*FILE_TOOLS, shell]}


@pytest.fixture(params=["virtual", "local"])
def env(request: Any, tmp_path: Path) -> Env:
    sandbox: Sandbox = LocalSandbox(tmp_path) if request.param == "local" else VirtualSandbox()
    return Env(sandbox=sandbox, tools=list(TOOLS.values()))


def run(env: Env, name: str, **arguments: Any) -> str:
    return TOOLS[name].run(arguments, env).text


def answered(env: Env, name: str, **arguments: Any) -> str:
    """Give the result as the model reads it."""
    env.messages.extend([Message("user", "Go."), asking(call(name, **arguments))])
    DefaultToolPipeline(lambda env: None, tools=TOOLS.values())(env)
    return env.messages[-1].content


def refused(env: Env, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as raised:
        run(env, name, **arguments)
    return str(raised.value)


def test_a_file_is_written_read_edited_and_removed(env: Env) -> None:
    assert "Wrote 4 bytes" in run(env, "write_file", path="a/b.txt", content="one\n")
    assert run(env, "read_file", path="/workspace/a/./b.txt") == "one\n"
    assert run(env, "read_file", path="a") == "b.txt"
    assert run(env, "read_file", path=".") == "a/"
    run(env, "edit_file", path="a/b.txt", old="one", new="two")
    assert run(env, "glob", pattern="**/*.txt") == "a/b.txt"
    assert run(env, "grep", pattern="t.o") == "a/b.txt:1:two"
    assert "It had 4 bytes" in run(env, "remove_file", path="a/b.txt")
    assert "There is no file" in refused(env, "read_file", path="a/b.txt")


def test_only_what_was_seen_is_replaced(env: Env) -> None:
    env.sandbox.write("a", b"theirs")
    assert "read it" in refused(env, "write_file", path="a", content="mine")
    run(env, "read_file", path="a")
    env.sandbox.write("a", b"changed")
    assert "was changed" in refused(env, "write_file", path="./a", content="mine")
    run(env, "read_file", path="a")
    assert "replaced 7 bytes" in run(env, "write_file", path="a", content="mine")
    # What the chat wrote itself, it knows.
    run(env, "write_file", path="a", content="again")
    assert env.sandbox.read("a") == b"again"


def test_an_edit_must_be_exact_and_of_one_place(env: Env) -> None:
    env.sandbox.write("a", b"x y x")
    assert "2 times" in refused(env, "edit_file", path="a", old="x", new="z")
    assert "not in" in refused(env, "edit_file", path="a", old="q", new="z")
    assert "empty" in refused(env, "edit_file", path="a", old="", new="z")
    assert "same" in refused(env, "edit_file", path="a", old="x", new="x")
    assert "2 passages" in run(env, "edit_file", path="a", old="x", new="z", replace_all=True)
    assert env.sandbox.read("a") == b"z y z"


def test_long_files_are_read_page_by_page(env: Env) -> None:
    env.sandbox.write("long", "".join(f"line {n}\n" for n in range(5000)).encode())
    first = run(env, "read_file", path="long", limit=10)
    assert first.startswith("line 0\n")
    assert first.endswith("offset=11.]")
    assert run(env, "read_file", path="long", offset=11, limit=1).startswith("line 10\n")
    assert "beyond its end" in refused(env, "read_file", path="long", offset=9999)
    env.sandbox.write("wide", b"x" * 1_000_000)
    assert len(run(env, "read_file", path="wide")) <= 51_200


def test_what_is_no_text_is_described(env: Env) -> None:
    env.sandbox.write("a.bin", b"\x00\xff" * 10)
    assert run(env, "read_file", path="a.bin") == "'a.bin' is no text: 20 bytes."
    assert "no text" in refused(env, "edit_file", path="a.bin", old="x", new="y")
    assert run(env, "grep", pattern=".") == "No line matches."


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*a){25}$", r"(?:a?){30}a{30}b"])
def test_no_pattern_takes_longer_than_it_may(env: Env, pattern: str) -> None:
    env.sandbox.write("a", b"a" * 9000 + b"!")
    began = time.monotonic()
    run(env, "grep", pattern=pattern)
    run(env, "glob", pattern="*a" * 200 + "b")
    run(env, "glob", pattern="**/" * 200 + "b")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("pattern", ["(?R)?a+b", "(a(?1)?b)", "(?P<x>a(?&x)?)", "(", "", "x" * 501])
def test_what_is_no_pattern_is_refused(env: Env, pattern: str) -> None:
    assert "pattern" in refused(env, "grep", pattern=pattern)


def test_the_app_s_own_files_are_not_the_model_s(env: Env) -> None:
    if isinstance(env.sandbox, VirtualSandbox):
        assert "own" in refused(env, "write_file", path=".nexo/seen.json", content="{}")
        assert "own" in refused(env, "read_file", path="./x/../.nexo/todo.json")


def test_a_shell_says_how_it_went(tmp_path: Path) -> None:
    env = Env(sandbox=LocalSandbox(tmp_path))
    assert run(env, "shell", command="echo out; echo err >&2; exit 3") == (
        "out\nSTDERR:\nerr\n[exit code: 3]"
    )
    assert "timeout" in run(env, "shell", command="sleep 30", timeout=0.3)
    long = answered(env, "shell", command="seq 100000")
    assert "99999\n100000" in long
    assert len(long.encode()) <= 51_200
    assert "no shell" in refused(Env(sandbox=VirtualSandbox()), "shell", command="true")


def test_a_long_output_is_told_of_and_kept_for_its_call(tmp_path: Path) -> None:
    kept: list[Any] = []

    def keep(text: str, call: ToolCall) -> str:
        kept.append((text, call))
        return "whole"

    env = Env(sandbox=LocalSandbox(tmp_path), metadata={"keep_output": keep})
    shown = answered(env, "shell", command="seq 100000")
    assert "whole" in shown
    assert "99999\n100000" in shown
    ((text, asked),) = kept
    assert text.startswith("1\n2\n")
    assert asked == env.messages[-2].calls[0]
    assert [event.payload["output_id"] for event in env.events if event.type == "truncated"] == [
        "whole"
    ]


def test_a_path_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    root = tmp_path / "workspace-of-mine"
    root.mkdir()
    env = Env(sandbox=LocalSandbox(root), tools=list(TOOLS.values()))
    run(env, "write_file", path=f"{root}/a.txt", content="one")
    (root / "a.txt").write_text("theirs")
    run(env, "read_file", path=f"{root}/./a.txt")
    run(env, "write_file", path="a.txt", content="two")
    assert run(env, "grep", pattern="two", path=f"{root}/a.txt") == "a.txt:1:two"
    assert "is absolute" in refused(env, "write_file", path="/workspaces/a.txt", content="x")


def test_cancelling_ends_the_command(tmp_path: Path) -> None:
    from nexo_django.exceptions import TurnCancelled

    class Cancelled(Env):
        def checkpoint(self, *, now: bool = False) -> None:
            raise TurnCancelled

    began = time.monotonic()
    with pytest.raises(TurnCancelled):
        TOOLS["shell"].run({"command": "sleep 60"}, Cancelled(sandbox=LocalSandbox(tmp_path)))
    assert time.monotonic() - began < 30


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from([
        "../canary", "/etc/passwd", "..", ".", "", "/", "\x00", "a\x00b", "..\\canary", "x" * 5000,
        "a/" * 2000, "~/x", "$(touch ../canary)", "-rf", "canary/../../canary", "\ud800", "(a+)+$",
        "[", "**/../*", "/workspace/../canary", "é", "e\u0301", "//etc//passwd", "d/", "d", "a\nb",
    ]),
    st.integers(), st.none(), st.booleans(), st.floats(), st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)  # fmt: skip
PARAMETERS = sorted({p for t in FILE_TOOLS for p in t.parameters["properties"]})


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from([tool.name for tool in FILE_TOOLS]),
    arguments=st.dictionaries(st.sampled_from(PARAMETERS), HOSTILE, max_size=6),
    inner=st.sampled_from(["virtual", "local"]),
)
def test_hostile_arguments_are_a_result_and_touch_nothing_else(
    tmp_path: Path, name: str, arguments: dict[str, Any], inner: str
) -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (tmp_path / "canary").write_text("canary")
    sandbox = LocalSandbox(work) if inner == "local" else VirtualSandbox()
    known = TOOLS[name].parameters["properties"]
    env = Env(sandbox=sandbox, tools=FILE_TOOLS)
    try:
        text = TOOLS[name].run({k: v for k, v in arguments.items() if k in known}, env).text
    except ToolError as error:
        text = str(error)
    assert "canary" not in text.replace("../canary", "").replace("canary/", "").replace(
        "canary'", ""
    ) or "canary" in str(arguments)
    assert (tmp_path / "canary").read_text() == "canary"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["canary", "work"]


@pytest.fixture
def box() -> Iterator[Sandbox]:
    if problem := bubblewrap_problem():
        pytest.skip(problem)
    with reachable() as root:
        yield MAKERS["bubblewrap"](root)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    command=st.one_of(
        st.text(max_size=40), st.binary(max_size=40).map(lambda b: b.decode("latin1"))
    )
)
def test_hostile_commands_are_a_result(box: Sandbox, command: str) -> None:
    try:
        result = TOOLS["shell"].run({"command": command, "timeout": 5}, Env(sandbox=box))
    except ToolError:
        return
    assert isinstance(result.text, str)


@pytest.mark.django_db(transaction=True)
def test_an_agent_that_declares_a_sandbox_has_its_tools_and_keeps_its_files() -> None:
    script = Script(
        asking(call("write_file", path="a.txt", content="kept")), "ok",
        asking(call("read_file", path="a.txt")), asking(call("write_file", path="a.txt", content="new")), "ok",
    )  # fmt: skip
    agent = make_agent(script, name="Keeper", sandbox="virtual", permissions="auto")
    session = Session.resume(agent, "1")
    session.prompt("write")
    Session.resume(agent, "1").prompt("read")
    results = [message.content or "" for message in session.messages if message.role == TOOL]
    assert "Wrote 4 bytes" in results[0]
    assert results[1] == "kept"
    assert "replaced 4 bytes" in results[2]
    assert "read_output(id=" in results[2]
    session.delete()


def test_what_is_offered_is_what_can_be_allowed() -> None:
    plain, reader = make_agent(name="Plain"), make_agent(name="Reader", sandbox="virtual")
    writer = make_agent(name="Writer", sandbox=LocalSandbox("/tmp"), permissions="auto")
    assert [tool.name for tool in plain().offered()] == []
    names = {tool.name for tool in reader().offered()}
    assert names == {"read_file", "glob", "grep", "read_output"}
    assert {"write_file", "shell"} <= {tool.name for tool in writer().offered()}


@pytest.mark.parametrize("value", ["nowhere", "container", "remote", 5, "Virtual"])
def test_what_is_no_sandbox_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        resolve(value)


def test_local_by_its_name_needs_a_root_and_gives_each_chat_its_own(
    tmp_path: Path, settings: Any
) -> None:
    from nexo_django.sandbox.base import Place

    with pytest.raises(ConfigurationError, match="SANDBOX_ROOT"):
        resolve("local").check()
    settings.NEXO = {**settings.NEXO, "SANDBOX_ROOT": str(tmp_path / "boxes")}
    one, two = (resolve("local").for_chat(Place("A/../..", name)) for name in ("1", "../1"))
    one.write("a", b"x")
    assert list(two.entries()) == []
    assert [entry.path for entry in one.entries()] == ["a"]
    one.discard()
    assert list(one.entries()) == []
