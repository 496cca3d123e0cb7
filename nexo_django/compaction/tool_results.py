"""The cheapest layer: old tool results, and files attached to old prompts, give way to a line."""

from __future__ import annotations

from collections.abc import Sequence

from nexo_django import media
from nexo_django.compaction.base import App, Compaction, Strategy, at_least
from nexo_django.messages import TOOL, USER, Message, ToolCall
from nexo_django.transcript import last_prompt, steps

_FIRST_LINE = 200


class ToolResults(Strategy):
    """Replace old tool results and attached files in place, oldest first, down to the target.

    The results of the newest `keep_steps` steps that have any stay, and so do those of
    `min_tokens` or fewer. A call keeps its result's place and id. Of the files, those of the
    newest `keep_turns` turns that have any stay, and those of the task's prompt.
    """

    name = "tool_results"

    def __init__(
        self,
        app: App | None = None,
        keep_steps: int = 1,
        min_tokens: int = 200,
        keep_turns: int = 1,
    ) -> None:
        self.app = app
        self.keep_turns = at_least("keep_turns", keep_turns, 0)
        self.keep_steps = at_least("keep_steps", keep_steps, 1)
        self.min_tokens = at_least("min_tokens", min_tokens, 0)

    def rewrite(self, env: Compaction) -> list[Message] | None:
        """Give the list with placeholders in it."""
        messages = list(env.conversation)
        total = env.count(messages)
        results = dict(_old_results(messages, self.keep_steps))
        for index in sorted([*results, *_old_files(messages, self.keep_turns)]):
            if total <= env.target:
                break
            message = messages[index]
            if index not in results:
                shorter = without_files(message)
            elif message.mark is None and env.size(message) > self.min_tokens:
                shorter = placeholder(env, message, results[index], self.name)
            else:
                continue
            messages[index] = shorter
            env.rewritten(shorter, message)
            total -= env.size(message) - env.size(shorter)
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


def without_files(message: Message) -> Message:
    """Give a prompt with a note in the place of each of its files."""
    parts = [
        {"type": "text", "text": media.note(part, "no longer shown")}
        if media.is_attachment(part)
        else part
        for part in message.parts or ()
    ]
    return message.replace(parts=tuple(parts), token_count=None)


def _old_files(messages: Sequence[Message], keep_turns: int) -> list[int]:
    """Give the indexes of prompts with files, but the task's and the newest of the others."""
    task = last_prompt(messages)
    found = [
        index
        for index, message in enumerate(messages)
        if message.role == USER and any(map(media.is_attachment, message.parts or ()))
    ]
    return [index for index in found[: max(0, len(found) - keep_turns)] if index != task]


def _old_results(messages: Sequence[Message], keep_steps: int) -> list[tuple[int, ToolCall | None]]:
    answered = [step for step in steps(messages) if len(step) > 1]
    found: list[tuple[int, ToolCall | None]] = []
    for step in answered[: max(0, len(answered) - keep_steps)]:
        calls = {call.id: call for call in messages[step.start].calls}
        results = (i for i in step if messages[i].role == TOOL)
        found += [(i, calls.get(messages[i].tool_call_id or "")) for i in results]
    return found
