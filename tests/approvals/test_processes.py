"""An approval that is asked for in one process, given in another, and run in a third."""

from __future__ import annotations

import signal
import time
import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from nexo_django import Session
from nexo_django.models import ToolCall, Turn
from tests.approvals.support import asker
from tests.models.support import LONG, run_apart

pytestmark = pytest.mark.django_db(transaction=True)

PUBLISHER = """
from nexo_django import Session, ToolCall, tool
from tests.support import Script, asking, make_agent
instance, path = arguments[:2]

@tool(capability="write")
def publish(text: str) -> str:
    "Publish a text."
    with open(path, "a") as file:
        file.write(f"{text}\\n")
    return f"published {text}"

@tool
def look() -> str:
    "Look."
    with open(path, "a") as file:
        file.write("looked\\n")
    return "seen"

def session(*steps):
    agent = make_agent(Script(*steps), name="Publisher", tools=[publish, look], permissions="approve")
    return Session.resume(agent, instance)
"""
ASKS = """
import time
def heard(kind, payload):
    if kind == "approval_requested" and payload["id"] == "b":
        say("asked")
        time.sleep(600)
calls = [ToolCall(id, "publish", {"text": id}) for id in ("a", "b")]
session(asking(*calls, ToolCall("l", "look"))).prompt("Publish.", on_event=heard)
"""
GOES_ON = """
reply = session("bye").continue_turn(wait=120)
say(f"{reply.status} {reply.content}")
"""


def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def test_a_killed_process_asks_the_admin_decides_and_another_goes_on(tmp_path) -> None:
    instance, effects = uuid.uuid4().hex, tmp_path / "effects"
    first = run_apart(PUBLISHER + ASKS, "1", instance, str(effects))
    assert first.stdout is not None
    assert first.stdout.readline() == "asked\n"
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=LONG)
    assert effects.read_text() == "looked\n"
    assert Turn.objects.get().status == "awaiting_approval"

    boss = admin()
    for call_id, verb in (("a", "approve"), ("b", "deny")):
        row = ToolCall.objects.get(call_id=call_id)
        url = reverse("admin:nexo_django_toolcall_decide", args=[row.pk])
        assert boss.post(url, {"decision": verb, "reason": "No."}).status_code == 302

    second = run_apart(PUBLISHER + GOES_ON, "1", instance, str(effects))
    assert second.communicate(timeout=2 * LONG)[0] == "done bye\n"
    assert effects.read_text() == "looked\na\n"
    rows = {row.call_id: (row.status, row.decided_by) for row in ToolCall.objects.all()}
    assert rows == {"a": ("done", "boss"), "b": ("denied", "boss"), "l": ("done", "")}
    turn = Turn.objects.get()
    assert (turn.number, turn.status) == (1, "done")


def test_processes_that_race_to_decide_and_to_go_on(tmp_path) -> None:
    from tests.approvals.support import asking, publishing

    instance, effects = uuid.uuid4().hex, tmp_path / "effects"
    ids = [str(n) for n in range(10)]
    agent = asker(asking(*publishing(*ids)), name="Publisher")
    Session.resume(agent, instance).prompt("Publish.")
    decides = """
from nexo_django.exceptions import AlreadyDecided
won = []
for n in range(10):
    try:
        getattr(session(), arguments[2])(str(n), by=arguments[2])
        won.append(str(n))
    except AlreadyDecided as error:
        assert error.by != arguments[2]
say(" ".join(won))
"""
    deciders = [
        run_apart(PUBLISHER + decides, "30", instance, str(effects), verb)
        for verb in ("approve", "deny")
    ]
    until = time.monotonic() + 4 * LONG
    runs = []
    while any(process.poll() is None for process in deciders):
        assert time.monotonic() < until
        goes_on = run_apart(PUBLISHER + GOES_ON, "30", instance, str(effects))
        runs.append(goes_on.communicate(timeout=4 * LONG)[0].strip())
        if runs[-1].startswith("done"):
            break
    approved, denied = (process.communicate(timeout=LONG)[0].split() for process in deciders)
    if not runs or not runs[-1].startswith("done"):
        last = run_apart(PUBLISHER + GOES_ON, "30", instance, str(effects))
        assert last.communicate(timeout=4 * LONG)[0] == "done bye\n"
    assert sorted([*approved, *denied]) == ids
    ran = effects.read_text().split() if effects.exists() else []
    assert sorted(ran) == sorted(approved)
