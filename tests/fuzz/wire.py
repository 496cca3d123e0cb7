"""A provider with a small context: it counts what it is sent with o200k and refuses what does
not fit, as it refuses what is no valid request. Its model goes on calling tools, step by step.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from nexo_django.compaction.record import OPENING
from nexo_django.tokens import count_text
from tests.completion.server import Act, Handler, Wire, answer, fail

# OpenAI's own overheads: of a message, of the answer's beginning.
PER_MESSAGE, PER_REPLY = 4, 3
KINDS = ("prose", "code", "base64", "chinese", "emoji", "log", "json")


def size(request: dict[str, Any]) -> int:
    """Count the tokens of a request."""
    total = PER_REPLY + count_text(json.dumps(request.get("tools") or "", ensure_ascii=False))
    for message in request["messages"]:
        total += PER_MESSAGE + count_text(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            function = call["function"]
            total += count_text(f"{call['id']} {function['name']} {function['arguments']}")
    return total


class SmallContext(Wire):
    """The server: `steps` times its model calls tools, then it answers."""

    def __init__(self, context: int, steps: int, seed: int = 1) -> None:
        super().__init__()
        self.context, self.steps = context, steps
        self.dice = Random(seed)
        self.made = 0
        # Requests of the conversation, and those for a summary.
        self.asked: list[dict[str, Any]] = []
        self.summaries = 0
        self.rejected: list[str] = []
        self.largest = 0

    def receive(self, handler: Handler, request: dict[str, Any]) -> Act:
        """Note a request, and refuse it or give what the model says."""
        super().receive(handler, request)
        with self.received:
            return self._act(request)

    def _act(self, request: dict[str, Any]) -> Act:
        taken = size(request)
        self.largest = max(self.largest, taken)
        if taken > self.context:
            self.rejected.append(f"{taken} tokens")
            return fail(
                400,
                f"This model's maximum context length is {self.context} tokens. However, your "
                f"messages resulted in {taken} tokens. Please reduce the length of the messages.",
                type="invalid_request_error",
                code="context_length_exceeded",
            )
        first = str(request["messages"][0]["content"])
        if first.startswith(OPENING):
            self.summaries += 1
            return self._summary(taken)
        self.asked.append(request)
        return self._step(request, taken)

    def _summary(self, taken: int) -> Act:
        words = [f"fact{self.dice.randint(0, 999)}" for _ in range(self.dice.randint(30, 200))]
        text = "Objective: as asked. Work done: " + " ".join(words)
        return answer(text, usage=used(taken, count_text(text)))

    def _step(self, request: dict[str, Any], taken: int) -> Act:
        if self.made >= self.steps:
            return answer("All is done.", usage=used(taken, 5))
        self.made += 1
        count = self.dice.choice((1, 1, 1, 2, 3))
        calls = [self._call(request, number) for number in range(count)]
        # litellm takes a model that repeats itself for a broken one.
        words = " ".join(str(self.dice.randint(1, 999)) for _ in range(self.dice.randint(1, 150)))
        text = self.dice.choice((None, "I look further.", f"I saw {words}"))
        output = count_text(text or "") + sum(count_text(" ".join(call)) for call in calls)
        return answer(text, calls, usage=used(taken, output))

    def _call(self, request: dict[str, Any], number: int) -> tuple[str, str, str]:
        # Ids come again, as those of some providers do.
        id_ = f"call_{self.made % 7}_{number}"
        kept = re.findall(r'read_output\(id=\\*"([^"\\]+)', json.dumps(request["messages"]))
        if kept and self.dice.random() < 0.15:
            return id_, "read_output", json.dumps({"id": self.dice.choice(kept), "limit": 20})
        wanted = {
            "kind": self.dice.choice(KINDS),
            "size": self.dice.choice((3, 30, 300, 3000, 12_000)),
            "seed": self.dice.randint(0, 10_000),
        }
        return id_, "look", json.dumps(wanted)


def used(input: int, output: int) -> dict[str, Any]:
    """Give the usage that the provider reports."""
    return {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
