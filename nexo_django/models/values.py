"""Between rows and values, without loss in either direction.

What a column can't tell apart or is too short for is kept whole in `extra`, under the name
that the value's field has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nexo_django.messages import COUNTS, Message, ToolCall, Usage
from nexo_django.models import usage
from nexo_django.tokens import RULER

if TYPE_CHECKING:
    from nexo_django.models.tool_call import AbstractToolCall

CALL_ID, NAME, MODEL_NAME, FINISH_REASON = 191, 255, 255, 64
# What `extra` may hold beside the value's own extra keys.
_MESSAGE_FIELDS = ("model", "finish_reason", "mark", "tool_call_id", "tool_calls")
_CALL_FIELDS = ("id", "name")


def message_columns(value: Message) -> dict[str, Any]:
    """Give a message's columns; its place, its links and its counts are the row's own."""
    extra = dict(value.extra)
    for name in ("mark", "tool_call_id"):
        if getattr(value, name) is not None:
            extra[name] = getattr(value, name)
    if value.tool_calls == ():
        extra["tool_calls"] = []
    used: dict[str, Any] = dict.fromkeys([*(f"{n}_tokens" for n in COUNTS), "cost", "raw_usage"])
    if value.usage is not None:
        used = {**usage.columns(value.usage), "raw_usage": value.usage.raw}
    return {
        "role": value.role,
        "kind": value.kind,
        "status": value.status,
        "content": value.content,
        "parts": None if value.parts is None else list(value.parts),
        "reasoning": value.reasoning,
        "is_error": value.is_error,
        "model_name": _fit(extra, "model", value.model, MODEL_NAME),
        "finish_reason": _fit(extra, "finish_reason", value.finish_reason, FINISH_REASON),
        **used,
        "extra": extra or None,
    }


def message_value(row: Any, calls: Sequence[ToolCall] = (), answers: str | None = None) -> Message:
    """Give a row as a value, with its calls and the id of the call that it answers.

    The row is a model's, or anything with the same columns.
    """
    extra = dict(row.extra or {})
    kept = {name: extra.pop(name) for name in _MESSAGE_FIELDS if name in extra} if extra else {}
    none = () if kept.get("tool_calls") == [] else None
    return Message(
        role=row.role,
        content=row.content,
        tool_calls=tuple(calls) or none,
        tool_call_id=kept.get("tool_call_id", answers),
        is_error=row.is_error,
        parts=None if row.parts is None else tuple(row.parts),
        reasoning=row.reasoning,
        kind=row.kind,
        status=row.status,
        mark=kept.get("mark"),
        model=kept.get("model", row.model_name or None),
        finish_reason=kept.get("finish_reason", row.finish_reason or None),
        usage=_usage(row),
        extra=extra,
        position=row.position,
        token_count=row.token_count if row.token_ruler == RULER else None,
    )


def call_columns(call: ToolCall) -> dict[str, Any]:
    """Give a call's columns; its place and what became of it are the row's own."""
    extra = dict(call.extra)
    return {
        "call_id": _fit_unique(extra, "id", call.id, CALL_ID),
        "name": _fit(extra, "name", call.name, NAME),
        "arguments": call.arguments,
        "raw_arguments": call.raw_arguments,
        "provider_fields": call.provider_fields,
        "extra": extra or None,
    }


def call_value(row: AbstractToolCall) -> ToolCall:
    """Give a call's row as a value."""
    extra = dict(row.extra or {})
    kept = {name: extra.pop(name) for name in _CALL_FIELDS if name in extra}
    return ToolCall(
        id=kept.get("id", row.call_id),
        name=kept.get("name", row.name),
        arguments=row.arguments,
        raw_arguments=row.raw_arguments,
        provider_fields=row.provider_fields,
        extra=extra,
    )


def _fit(extra: dict[str, Any], name: str, value: str | None, length: int) -> str:
    if value == "" or (value is not None and len(value) > length):
        extra[name] = value
    return (value or "")[:length]


def _fit_unique(extra: dict[str, Any], name: str, value: str, length: int) -> str:
    """Cut a text so that two which begin alike still differ."""
    cut = _fit(extra, name, value, length)
    if len(value) <= length:
        return cut
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{cut[: length - len(digest) - 1]}-{digest}"


def _usage(row: Any) -> Usage | None:
    if row.input_tokens is None:
        return None
    counts = {name: getattr(row, f"{name}_tokens") or 0 for name in COUNTS}
    return Usage(**counts, cost=row.cost, raw=row.raw_usage)
