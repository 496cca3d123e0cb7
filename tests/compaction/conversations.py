"""Random conversations as a turn may meet them, all valid, and completions for a summariser."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from nexo_django.messages import ASSISTANT, NOTICE, SUMMARY, SYSTEM, TOOL, USER, Message, ToolCall
from nexo_django.pipeline import Env
from nexo_django.tokens import estimate_message

TEXTS = ("yes", "a word or two", "我们今天去公园", "😀🎉", "line\nline\n", "x7Qz" * 40)


class Writer:
    """Writes a conversation, message by message, each with its position."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls = 0

    def add(self, role: str, content: str | None = None, **fields) -> None:
        position = len(self.messages)
        message = Message(role, content, position=position, **fields)
        # As from a store, which counts each once.
        counted = message.replace(token_count=estimate_message(message))
        self.messages.append(counted)

    def step(self, sizes: list[int], text: str, repeated: bool) -> None:
        calls = []
        for _ in sizes:
            self.calls += 1
            # Providers repeat ids from one turn to the next.
            number = self.calls % 3 if repeated else self.calls
            calls.append(ToolCall(f"call_{number}_{len(calls)}", "search", {"q": text}))
        self.add(ASSISTANT, text or None, tool_calls=calls)
        for call, size in zip(calls, sizes, strict=True):
            self.add(TOOL, "result " * size or "-", tool_call_id=call.id, is_error=size % 5 == 4)


def conversation(random: Random, turns: int, *, repeated: bool = False) -> list[Message]:
    """Give a conversation whose last turn may be a long task under way."""
    writer = Writer()
    if random.random() < 0.8:
        writer.add(SYSTEM, "You are terse. " * random.randint(1, 20))
    if random.random() < 0.3:
        for number in range(random.randint(1, 2)):
            writer.add(
                USER,
                f"earlier summary {number} " * random.randint(1, 30),
                kind=SUMMARY,
                mark="summary",
            )
    elif random.random() < 0.1:
        writer.add(USER, "no longer shown", kind=NOTICE, mark="sliding_window")
    for number in range(turns):
        writer.add(USER, f"question {number} " + random.choice(TEXTS) * random.randint(1, 30))
        for _ in range(random.choice((0, 0, 1, 2, 5))):
            sizes = [
                random.choice((1, 4, 40, 250, 700)) for _ in range(random.choice((1, 1, 2, 3)))
            ]
            writer.step(sizes, random.choice(TEXTS), repeated)
        if number < turns - 1 or random.random() < 0.2:
            writer.add(
                ASSISTANT, f"answer {number} " + random.choice(TEXTS) * random.randint(1, 60)
            )
    return writer.messages


CONVERSATIONS = st.builds(
    conversation,
    st.randoms(use_true_random=False),
    st.integers(1, 6),
    repeated=st.booleans(),
)


class Summariser:
    """A completion that answers with a short text, and keeps what it was asked."""

    def __init__(self, *answers: Message | str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[list[Message]] = []
        self.envs: list[Env] = []

    def __call__(self, env: Env) -> None:
        self.asked.append(list(env.messages))
        self.envs.append(env)
        answer = self.answers.pop(0) if self.answers else f"Told in short {len(self.asked)}."
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            answer = Message(ASSISTANT, answer)
        env.messages.append(answer)

    @property
    def read(self) -> str:
        """Everything it was ever given."""
        return "\n".join(m.content or "" for messages in self.asked for m in messages)
