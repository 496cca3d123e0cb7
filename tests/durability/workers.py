"""The agent that the durability proofs run: its model plays a script, its tools have real effects.

The script is in the prompt, "p7 pair": the prompt's own name, then the shape of its turn. So a
request can be answered from the messages alone, by whichever process takes the turn up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nexo_django import Agent, Session, tool
from nexo_django import events as names
from nexo_django.messages import ASSISTANT, NORMAL, USER, Message, ToolCall, Usage
from nexo_django.pipeline import Env
from nexo_django.transcript import problem, sendable
from tests.durability import journal
from tests.durability.forks import until
from tests.durability.points import (
    AFTER,
    ANSWER,
    BETWEEN,
    CALLS,
    COMPACTING,
    MODEL,
    RESULT,
    STREAM,
    TOOLS,
    points,
)

# The shape of a turn: how many calls each step makes before the answer.
SHAPES: dict[str, tuple[int, ...]] = {
    "plain": (),
    "stream": (),
    "tool": (1,),
    "pair": (2,),
    "loop": (1, 2),
    "streamed-pair": (2,),
    "again": (1,),
    "squeeze": (1,),
    "gate": (),
    "gate-tool": (1,),
    "slow": (),
    "siblings": (2,),
}
# What the kill matrix goes through.
MATRIX = ("plain", "stream", "tool", "pair", "loop", "streamed-pair", "again", "squeeze")
# Two prompts of the shape "squeeze" do not fit the context, so that the second one compacts.
WINDOW = 2000
FILLER = " word" * 600


def effect(mark: str) -> str:
    """Do something that must not be done twice."""
    return _act(mark, journal.EFFECT)


def repeatable(mark: str) -> str:
    """Do something that may be done again."""
    return _act(mark, "repeatable")


def _act(mark: str, kind: str) -> str:
    instance, _name, call = mark.split("/")
    points.enter(TOOLS)
    points.reach("before the effect")
    if os.environ.get("NEXO_TEST_TOOL_DIES") == call:
        # The other call's result is told of after its commit.
        until(lambda: journal.read(instance, journal.RESULT), "the first result")
        os.kill(os.getpid(), 9)
    journal.write(instance, kind, mark=mark)
    points.enter(RESULT)
    points.reach("after the effect")
    return f"did {mark}"


class Durable(Agent):
    """Plays scripts."""

    name = "Durable"
    instructions = "Play the script."
    context_window = WINDOW
    tools = [tool(name="effect")(effect), tool(name="repeatable", idempotent=True)(repeatable)]

    def completion(self) -> Any:
        return play


def play(env: Env) -> None:
    """Answer a request as the script of its last prompt says."""
    if "context" not in env.metadata:
        return _summarise(env)
    instance = env.metadata["context"].instance_id
    seen = sendable(env.messages)
    last = max(i for i, m in enumerate(seen) if m.role == USER and m.kind == NORMAL)
    name, shape = (seen[last].content or "").split()[:2]
    step = sum(m.role == ASSISTANT for m in seen[last:])
    points.enter(MODEL)
    journal.write(instance, journal.REQUEST, name=name, step=step, problem=problem(seen))
    points.reach("in the model")
    if step == len(SHAPES[shape]):
        wait_for(instance, shape)
    if step < len(SHAPES[shape]):
        _call_tools(env, f"{instance}/{name}", shape, step)
    else:
        _answer(env, instance, name, shape)


def _summarise(env: Env) -> None:
    """Answer compaction, which asks the same completion."""
    points.enter(COMPACTING)
    journal.write(points.instance, journal.SUMMARY, problem=problem(sendable(env.messages)))
    points.reach("in the summary")
    env.messages.append(_message("They talked."))


def _call_tools(env: Env, prefix: str, shape: str, step: int) -> None:
    used = "repeatable" if shape == "again" else "effect"
    calls = [
        # Ids repeat from step to step, as they do with some providers.
        ToolCall(f"call_{index}", used, {"mark": f"{prefix}/{step}.{index}"})
        for index in range(SHAPES[shape][step])
    ]
    points.enter(CALLS)
    env.messages.append(_message(None, tool_calls=tuple(calls)))
    points.enter(TOOLS)


def _answer(env: Env, instance: str, name: str, shape: str) -> None:
    text = answer(name)
    for piece in (text[:4], text[4:]) if env.stream else (text,):
        if shape.startswith("stream"):
            points.enter(STREAM)
        env.emit(names.CONTENT, {"text": piece})
        points.reach("after a chunk")
        env.checkpoint()
    points.enter(ANSWER)
    env.messages.append(_message(text))
    journal.write(instance, journal.ANSWER, name=name)
    points.enter(AFTER)
    points.reach("after the answer")


def _message(text: str | None, **fields: Any) -> Message:
    return Message(ASSISTANT, text, model="scripted", usage=Usage(input=7, output=3), **fields)


def prompt(name: str, shape: str) -> str:
    """Give the text of a prompt."""
    return f"{name} {shape}" + (FILLER if shape == "squeeze" else "")


def answer(name: str) -> str:
    """Give the text that answers a prompt."""
    return f"answer to {name}"


def gate(instance: str) -> Path:
    """Give the file that the model waits for in the shape "gate"."""
    return journal.folder() / f"{instance}.gate"


def wait_for(instance: str, shape: str) -> None:
    if shape.startswith("gate"):
        until(gate(instance).exists, "the gate to open")
    elif shape == "slow":
        time.sleep(float(os.environ["NEXO_TEST_MODEL_SECONDS"]))


def run(
    instance: str, name: str, shape: str, *, key: str | None = None, wait: float | None = None
) -> str:
    """Give one prompt, write down what is known of it, and give the reply's text."""
    session = Session.resume(Durable, instance)
    journal.write(instance, journal.ISSUED, name=name)
    points.instance = instance
    text, listen = prompt(name, shape), _listener(instance, shape)
    try:
        if shape.startswith("stream"):
            for event in session.stream(text, key=key, wait=wait):
                listen(event.type, event.payload)
                done = event.payload
            content = str(done["content"])
        else:
            reply = session.prompt(text, on_event=listen, key=key, wait=wait)
            content = reply.content
    except Exception as error:
        journal.write(instance, journal.RAISED, name=name, error=type(error).__name__)
        raise
    journal.write(instance, journal.REPLY, name=name, content=content)
    return content


def go_on(instance: str) -> str:
    """Continue the turn, write down what is known of it, and give the reply's text."""
    points.instance = instance
    return Session.resume(Durable, instance).continue_turn(on_event=_listener(instance, "")).content


def _listener(instance: str, shape: str) -> Any:
    told: list[str] = []

    def listen(type: str, payload: dict[str, Any]) -> None:
        if type != names.TOOL_RESULT or payload["is_error"]:
            return
        journal.write(instance, journal.RESULT, content=payload["content"])
        told.append(payload["id"])
        if len(told) % 2 and 2 in SHAPES.get(shape, ()) and (shape != "loop" or len(told) > 1):
            points.enter(BETWEEN)
        points.reach("after a result")

    return listen


def each(work: Sequence[tuple[Any, ...]]) -> None:
    """Run several prompts one after the other: the arguments of `run`."""
    for arguments in work:
        run(*arguments)
