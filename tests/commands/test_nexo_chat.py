"""The chat command as people use it: processes of their own, pipes, a terminal, Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0

# The command beside an agent whose model is slow, fails or calls a tool, as it is told to.
DRIVER = """
import sys, time
import django
django.setup()
from django.core.management import execute_from_command_line
from nexo_django import Agent, Message, ToolCall, tool
from nexo_django.exceptions import ProviderUnavailable

@tool
def weather(city: str) -> str:
    \"\"\"Current weather in a city.\"\"\"
    return "sunny\\x1b[2J in " + city

@tool(capability="shell")
def stop() -> str:
    \"\"\"Stop the machine.\"\"\"
    raise SystemExit

class Odd(Agent):
    tools = [weather, stop, "question"]
    permissions = "approve"

    def completion(self):
        def model(env):
            last = env.messages[-1]
            if last.content == "slow":
                env.emit("content", {"text": "begun\\n"})
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    env.checkpoint()
                    time.sleep(0.02)
            if last.content == "fail":
                raise ProviderUnavailable("The provider is down; try again later.")
            if last.content == "call":
                calls = (ToolCall("1", "weather", {"city": "Oslo"}),)
                env.messages.append(Message("assistant", tool_calls=calls))
                return
            if last.content == "ask":
                asked = ToolCall("1", "question", {"text": "Where?"})
                calls = (asked, ToolCall("2", "stop", {}))
                env.messages.append(Message("assistant", tool_calls=calls))
                return
            text = f"heard: {last.content}"
            env.emit("content", {"text": text})
            env.messages.append(Message("assistant", text))
        return model

execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    found = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{folder / 'chat.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TERM": "dumb",
    }
    subprocess.run(command("migrate", "--verbosity", "0"), env=found, check=True, timeout=240)
    return found


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", DRIVER, *words]


def chat(environ, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("nexo_chat", *options),
        env=environ,
        input=typed,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_one_prompt_is_answered_and_remembered(environ):
    done = chat(environ, "Assistant", "user-42", "--prompt", "My name is Mac.")
    assert (done.returncode, done.stderr) == (0, "")
    done = chat(environ, "Assistant", "user-42", "--prompt", "What is my name?")
    assert "Mac" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_script_talks_line_by_line(environ):
    done = chat(environ, "Odd", "script", typed="\none\n/help\n/history\ncall\n/exit\nnever read\n")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "heard: one"
    assert "/history" in lines[1]
    assert lines[-5:-3] == ["user: one", "model: heard: one"]
    assert lines[-3:-1] == ['→ weather {"city": "Oslo"}', "← weather: sunny\ufffd[2J in Oslo"]
    assert lines[-1] == "heard: sunny\ufffd[2J in Oslo"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("Odt", "1", "--prompt", "x"), "'Odd'"),
        (("Odd", "", "--prompt", "x"), "The instance id is empty"),
        (("Odd", "1", "--prompt", ""), "The prompt is empty"),
        (("Odd", "1", "--prompt", "fail"), "The provider is down; try again later."),
    ],
)
def test_what_went_wrong_is_told_with_exit_code_one(environ, options, told):
    done = chat(environ, *options)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_does_not_end_a_script(environ):
    done = chat(environ, "Odd", "failing", typed="fail\nstill there?\n")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "heard: still there?"
    assert chat(environ, "Odd", "failing", typed="still there?\nfail\n").returncode == 1


def test_the_model_can_be_another(environ):
    done = chat(environ, "Assistant", "1", "--model", "nexo/offline", "--prompt", "Hello.")
    assert done.returncode == 0


def test_ctrl_c_stops_the_turn_and_keeps_the_session(environ):
    process = subprocess.Popen(
        command("nexo_chat", "Odd", "stopped"),
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        process.stdin.write("slow\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate("still there?\n", timeout=240)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert "Stopped;" in out
    assert out.splitlines()[-1] == "heard: still there?"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_person_is_asked_and_leaves_with_ctrl_d(environ):
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("nexo_chat", "Odd", "person"),
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        seen = read_until(ours, "> ")
        assert "Odd · nexo/offline · /help" in seen
        os.write(ours, b"fail\n")
        seen = read_until(ours, "> ")
        assert "The provider is down" in seen
        os.write(ours, b"hello\n")
        assert "heard: hello" in read_until(ours, "> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: str) -> str:
    """Read what a terminal shows until it asks again."""
    seen, until = b"", time.monotonic() + PATIENCE
    while not seen.decode(errors="replace").endswith(text):
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"{text!r} never came; seen: {seen!r}"
        seen += os.read(terminal, 4096)
    return seen.decode(errors="replace")


def test_a_call_that_waits_is_decided_in_the_conversation(environ):
    typed = "ask\n/approve z\n/deny 2 Not that.\n/answer 1 In Oslo.\n/continue\n/history\n"
    done = chat(environ, "Odd", "asked", typed=typed)
    assert done.returncode == 0, done.stderr
    assert "? Where? /answer 1 TEXT, then /continue." in done.stdout
    assert "/approve 2 or /deny 2 [REASON]" in done.stdout
    assert "The calls that wait: '1', '2'" in done.stdout
    assert "heard: The call was denied; it was not run. The reason: Not that." in done.stdout
    assert "tool: In Oslo." in done.stdout
