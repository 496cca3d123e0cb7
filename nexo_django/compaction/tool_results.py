"""The cheapest layer: old tool results give way to a line that says how to have them again."""

from __future__ import annotations

from collections.abc import Sequence

from nexo_django.compaction.base import App, Compaction, Strategy, at_least
from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.transcript import steps

_FIRST_LINE = 200


class ToolResults(Strategy):
    """Replace old tool results in place, oldest first, until the target is reached.

    The results of the newest `keep_steps` steps that have any stay, and so do those of
    `min_tokens` or fewer. A call keeps its result's place and id.
    """

    name = "tool_results"

    def __init__(self, app: App | None = None, keep_steps: int = 1, min_tokens: int = 200) -> None:
        self.app = app
        self.keep_steps = at_least("keep_steps", keep_steps, 1)
        self.min_tokens = at_least("min_tokens", min_tokens, 0)

    def rewrite(self, env: Compaction) -> list[Message] | None:
        """Give the list with placeholders in it."""
        messages = list(env.conversation)
        total = env.count(messages)
        for index, call in _old_results(messages, self.keep_steps):
            if total <= env.target:
                break
            message = messages[index]
            if message.mark is not None or env.size(message) <= self.min_tokens:
                continue
            messages[index] = placeholder(env, message, call, self.name)
            env.rewritten(messages[index], message)
            total -= env.size(message) - env.size(messages[index])
        return messages


def placeholder(env: Compaction, message: Message, call: ToolCall | None, mark: str) -> Message:
    """Give the message that stands in a result's place."""
    name = "the tool" if call is None else call.name
    text = message.content or ""
    stored = env.keep(text, call) if env.keep is not None and call is not None and text else None
    if stored is None:
        again = f"call {name} again if it is needed"
    else:
        again = f'read it with read_output(id="{stored}")'
    said = f"[This result of {name} is no longer shown, to save context; {again}.]"
    if message.is_error:
        said = f"{text.strip().partition(chr(10))[0][:_FIRST_LINE]}\n{said}"
    return message.replace(content=said, parts=None, mark=mark, token_count=None)


def _old_results(messages: Sequence[Message], keep_steps: int) -> list[tuple[int, ToolCall | None]]:
    answered = [step for step in steps(messages) if len(step) > 1]
    found: list[tuple[int, ToolCall | None]] = []
    for step in answered[: max(0, len(answered) - keep_steps)]:
        calls = {call.id: call for call in messages[step.start].calls}
        results = (i for i in step if messages[i].role == TOOL)
        found += [(i, calls.get(messages[i].tool_call_id or "")) for i in results]
    return found
