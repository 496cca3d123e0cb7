"""The emergency: what no layer may give up does not fit, so the largest results are cut."""

from __future__ import annotations

from nexo_django.compaction.base import Compaction
from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.truncation import truncate

MARK = "clipped"
LEAST_BYTES = 400


def clip(env: Compaction) -> None:
    """Cut the largest tool results, at most until the conversation fits the limit."""
    limit = env.limit
    if limit is None:
        return
    messages = list(env.conversation)
    over = env.count(messages) - limit
    results = [i for i, m in enumerate(messages) if m.role == TOOL and m.content]
    for index in sorted(results, key=lambda i: env.size(messages[i]), reverse=True):
        if over <= 0:
            break
        shorter = _shorter(env, messages, index, over)
        over -= env.size(messages[index]) - env.size(shorter)
        messages[index] = shorter
    env.take(MARK, messages)


def _shorter(env: Compaction, messages: list[Message], index: int, over: int) -> Message:
    message, text = messages[index], messages[index].content or ""
    size, length = env.size(message), len(text.encode())
    wanted = max(LEAST_BYTES, length * max(0, size - over) // max(1, size) - LEAST_BYTES)
    call = _call(messages, index)
    stored = env.keep(text, call) if env.keep is not None and call is not None else None
    cut = truncate(text, max_bytes=wanted, output_id=stored)
    shorter = message.replace(content=cut.text, mark=MARK, token_count=None)
    return shorter if env.size(shorter) < size else message


def _call(messages: list[Message], index: int) -> ToolCall | None:
    for message in reversed(messages[:index]):
        for call in message.calls:
            if call.id == messages[index].tool_call_id:
                return call
    return None
