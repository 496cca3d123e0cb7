"""Processes that know nothing of each other, some of which are killed."""

from __future__ import annotations

import signal
import uuid

import pytest

from nexo_django import transcript
from nexo_django.messages import TOOL
from nexo_django.models import Chat, Turn
from nexo_django.stores.base import DONE, STOPPED
from tests.models.support import LONG, ask, contents, go_on, new_chat, row_of, run_apart

pytestmark = pytest.mark.django_db(transaction=True)

TURNS = """
from nexo_django.messages import Message
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.database import DatabaseStore
agent, instance, name = arguments
sys.stdin.readline()
chat = DatabaseStore().chat(agent, instance)
for n in range(4):
    turn = chat.begin(TurnRequest(Message("user", f"{name} {n}"), wait=120, model="nexo/offline"))
    turn.append(Message("assistant", f"to {name} {n}"))
    turn.close()
say("ended")
"""

TOOLS = """
from nexo_django.messages import Message, ToolCall
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.database import DatabaseStore
chat = DatabaseStore().chat(*arguments)
turn = chat.begin(TurnRequest(Message("user", "first"), key="k", model="nexo/offline"))
calls = [ToolCall(f"call_{n}", "x") for n in range(3)]
turn.append(Message("assistant", None, tool_calls=calls))
turn.start_call(calls[0])
turn.append(Message("tool", "finished", tool_call_id="call_0"))
turn.start_call(calls[1])
say("at work")
import time
time.sleep(600)
"""


def test_turns_of_several_processes_come_one_after_the_other() -> None:
    import subprocess

    chat = new_chat()
    names = ["a", "b", "c"]
    processes = [
        run_apart(TURNS, "30", chat.agent_name, chat.instance_id, name, stdin=subprocess.PIPE)
        for name in names
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate(timeout=4 * LONG)[0] == "ended\n"
    said = contents(list(chat.history()))
    prompts = said[::2]
    assert said[1::2] == [f"to {prompt}" for prompt in prompts]
    assert sorted(map(str, prompts)) == [f"{name} {n}" for name in names for n in range(4)]
    for name in names:
        assert [p for p in prompts if str(p).startswith(name)] == [f"{name} {n}" for n in range(4)]
    row = row_of(chat)
    assert Chat.objects.count() == 1
    assert (row.message_count, row.next_turn, row.lease_token) == (24, 13, "")
    assert set(Turn.objects.values_list("status", flat=True)) == {DONE}


@pytest.mark.parametrize("going_on", ["prompt", "continue", "key"])
def test_a_process_that_is_killed_is_replaced(going_on: str) -> None:
    chat = new_chat()
    process = run_apart(TOOLS, "1", chat.agent_name, chat.instance_id)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    assert row_of(chat).lease_token
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LONG)
    if going_on == "prompt":
        turn = chat.begin(ask("second", wait=LONG))
    elif going_on == "key":
        turn = chat.begin(ask("first", key="k", wait=LONG))
    else:
        turn = chat.begin(go_on(wait=LONG))
    results = [m.content for m in turn.messages if m.role == TOOL]
    closed = transcript.INTERRUPTED_TEXT
    if going_on == "prompt":
        assert results == ["finished", closed, closed]
        assert Turn.objects.get(number=1).status == STOPPED
    else:
        assert results == ["finished", closed]
        assert [call.id for call in transcript.open_calls(turn.messages)] == ["call_2"]
        assert turn.number == 1
    turn.close()


def test_a_child_that_leaves_through_its_parents_turn() -> None:
    """A tool forks; the child's own exit runs back through the stack that both are in."""
    child = run_apart(
        """
        from nexo_django import Agent, Session, tool
        from nexo_django.exceptions import LeaseLost

        @tool
        def fork() -> str:
            "Fork."
            pid = os.fork()
            if pid == 0:
                raise SystemExit(0)
            os.waitpid(pid, 0)
            return "from the parent"

        class Forking(Agent):
            name, model, tools = "Forking", "nexo/offline", [fork]

        mine = os.getpid()
        try:
            reply = Session.resume(Forking, arguments[0]).prompt("call fork {}")
        except BaseException:
            if os.getpid() != mine:
                os._exit(0)
            raise
        say(f"{reply.status} {reply.turn}")
        """,
        "60",
        name := uuid.uuid4().hex,
    )
    said, _ = child.communicate(timeout=LONG)
    assert said.splitlines() == ["done 1"]
    chat = Chat.objects.get(agent_name="Forking", instance_id=name)
    assert (chat.lease_token, chat.open_turn) == ("", None)
    assert chat.turns.get().status == "done"
    assert chat.messages.get(role="tool").content == "from the parent"
