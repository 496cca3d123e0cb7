"""The one way into a store: what a database, JSON or UTF-8 can't hold is replaced, never refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from nexo_django.messages import COUNTS, Message, ToolCall, Usage

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# MariaDB's JSON functions refuse documents that are nested 32 deep or more.
MAX_DEPTH = 24
MAX_INTEGER_BITS = 1024
# A larger one is no call's: it would only make every sum with it wrong.
MAX_TOKENS = 2**31 - 1
MAX_COST = 10**8


def clean_text(text: str) -> str:
    """Replace NUL and lone surrogates; two surrogates that make a pair become their character."""
    if not _UNSTORABLE.search(text):
        return text
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return paired.replace("\x00", REPLACEMENT)


def clean_json(value: Any) -> Any:
    """Give the JSON value nearest to any value; a JSON value comes back equal.

    NaN and the infinities become their names, keys become text, objects their `str()`, and
    what is nested too deep, or inside itself, its text.
    """
    return _clean(value, ())


def clean_message(message: Message) -> Message:
    """Give the message with every text and JSON in it cleaned."""
    calls = None if message.tool_calls is None else [_clean_call(c) for c in message.tool_calls]
    return message.replace(
        content=_text(message.content),
        tool_calls=calls,
        tool_call_id=_text(message.tool_call_id),
        parts=None if message.parts is None else tuple(clean_json(message.parts)),
        reasoning=None if message.reasoning is None else clean_json(message.reasoning),
        mark=_text(message.mark),
        model=_text(message.model),
        finish_reason=_text(message.finish_reason),
        usage=None if message.usage is None else clean_usage(message.usage),
        extra=clean_json(message.extra),
    )


def _clean_call(call: ToolCall) -> ToolCall:
    fields = call.provider_fields
    return ToolCall(
        id=clean_text(str(call.id)),
        name=clean_text(str(call.name)),
        arguments=clean_json(call.arguments),
        raw_arguments=_text(call.raw_arguments),
        provider_fields=None if fields is None else clean_json(fields),
        extra=clean_json(call.extra),
    )


def clean_usage(usage: Usage) -> Usage:
    """Give the usage with numbers that can be summed and stored."""
    counts = {name: _count(getattr(usage, name)) for name in COUNTS}
    raw = None if usage.raw is None else clean_json(usage.raw)
    return Usage(**counts, cost=_cost(usage.cost), raw=raw)


def _count(value: Any) -> int:
    try:
        return min(max(int(value), 0), MAX_TOKENS)
    except (TypeError, ValueError, OverflowError):
        return 0


def _cost(value: Any) -> Decimal | None:
    """Give a price as a number that can be summed, or None for what is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        cost = value if isinstance(value, Decimal) else Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    return cost if cost.is_finite() and 0 <= cost < MAX_COST else None


def _text(value: str | None) -> str | None:
    return None if value is None else clean_text(str(value))


def _clean(value: Any, around: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INTEGER_BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NAMES.get(value, "NaN")
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return described(value)
    if len(around) >= MAX_DEPTH or id(value) in around:
        return described(value)
    within = (*around, id(value))
    if isinstance(value, Mapping):
        return {clean_text(described(k)): _clean(v, within) for k, v in value.items()}
    items = sorted(value, key=_order) if isinstance(value, set | frozenset) else value
    return [_clean(item, within) for item in items]


def _order(item: Any) -> str:
    try:
        return repr(item)
    except Exception:
        return described(item)


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def described(value: Any) -> str:
    """Give any object's text, or its type's name where even that fails."""
    try:
        return clean_text(str(value))
    except Exception:  # an object whose text can't be had still must not lose the message
        return f"<{type(value).__name__}>"
