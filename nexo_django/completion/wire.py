"""The request's messages, in each provider's own terms; what is stored never changes.

The same messages always give the same bytes, and messages that come after others do not
change those before: prompt caches keep working.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

from nexo_django import media, structured
from nexo_django.completion import providers
from nexo_django.completion.answer import SIGNATURE_IN_ID
from nexo_django.messages import ASSISTANT, SYSTEM, TOOL, Message, ToolCall, is_blank
from nexo_django.sanitize import clean_json, clean_text

NOTHING, UNANSWERED = "(empty)", "(no answer)"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
# Who caches only what is marked; the others do so unasked, or refuse a request with marks.
_MARKED = frozenset({"anthropic", "azure_ai", "bedrock", "openrouter", "vertex_ai"})
_CLAUDE = re.compile(r"claude", re.IGNORECASE)
_CACHE = {"cache_control": {"type": "ephemeral"}}


# Gives the part that is sent for one that refers to a file.
Show = Callable[[dict[str, Any]], dict[str, Any]]


def to_wire(
    messages: Iterable[Message], provider: str, model: str, show: Show | None = None
) -> list[dict[str, Any]]:
    """Give the messages as dictionaries of the chat format.

    The messages are in sendable order. Ids of tool calls become unique in the request and
    valid for the provider, results follow them; reasoning goes only to whom it came from;
    arguments are always a JSON object. A result without its call is left out. `show` gives
    what is sent of attached files; without it that is a note.
    """
    ids = _Ids(rules := providers.of(provider, model))
    sent: list[dict[str, Any]] = []
    for message in _apart(messages) if rules.differing else messages:
        if message.role == TOOL:
            answered = ids.answer(message.tool_call_id or "")
            if answered is not None:
                text = _text(message) or NOTHING
                sent.append({"role": TOOL, "tool_call_id": answered, "content": text})
        elif message.role == ASSISTANT:
            sent += _assistant(message, ids, provider, model)
        else:
            if rules.closing and sent and sent[-1]["role"] == TOOL:
                sent.append({"role": ASSISTANT, "content": UNANSWERED})
            content = _content(message, show) or NOTHING
            sent.append({"role": message.role, "content": content})
    return sent


def _apart(messages: Iterable[Message]) -> Iterator[Message]:
    """Part a step that calls the same twice into steps that each call it once."""
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        rounds = _rounds(message.calls)
        if len(rounds) < 2:
            yield message
            continue
        results = []
        while rest and rest[0].role == TOOL:
            results.append(rest.popleft())
        for number, calls in enumerate(rounds):
            said = {} if number == 0 else {"content": None, "parts": None, "reasoning": None}
            yield message.replace(tool_calls=tuple(calls), **said)
            ids = {call.id for call in calls}
            yield from (result for result in results if result.tool_call_id in ids)


def _rounds(calls: Iterable[ToolCall]) -> list[list[ToolCall]]:
    rounds: list[list[ToolCall]] = []
    times: dict[str, int] = defaultdict(int)
    for call in calls:
        like = json.dumps([call.name, clean_json(call.arguments)], sort_keys=True)
        if times[like] == len(rounds):
            rounds.append([])
        rounds[times[like]].append(call)
        times[like] += 1
    return rounds


def _assistant(message: Message, ids: _Ids, provider: str, model: str) -> list[dict[str, Any]]:
    ids.next_step()
    data: dict[str, Any] = {"role": ASSISTANT, "content": _content(message) or None}
    own = is_own(message, provider, model)
    if own:
        data.update(_reasoning(message.reasoning or {}, ids.rules.replays))
    if message.calls:
        data["tool_calls"] = [_call(call, ids, own) for call in message.calls]
    return [data] if data["content"] or message.calls else []


def may_think(sent: list[dict[str, Any]], provider: str, model: str) -> bool:
    """Whether thinking can be asked for.

    A provider of signed blocks refuses it while the results at the end answer calls that
    came without one: from another model, or from before thinking was asked for.
    """
    signed = providers.of(provider, model).replays == providers.BLOCKS
    if not signed or not sent or sent[-1]["role"] != TOOL:
        return True
    return any("thinking_blocks" in m for m in _last_step(sent))


def marks_cache(provider: str, model: str) -> bool:
    """Whether the provider caches only what a request marks."""
    return provider in _MARKED and _CLAUDE.search(model) is not None


def mark_cache(request: dict[str, Any]) -> dict[str, Any]:
    """Mark where a cache may end: behind the tools, the system message and the last message.

    The last mark moves from request to request; what is before it stays the same.
    """
    messages, tools = list(request["messages"]), list(request.get("tools", ()))
    for index in {0, len(messages) - 1} if messages else ():
        if index or messages[0]["role"] == SYSTEM or len(messages) == 1:
            messages[index] = _marked(messages[index])
    if tools:
        tools[-1] = {**tools[-1], **_CACHE}
        request = {**request, "tools": tools}
    return {**request, "messages": messages}


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content[:-1], {**content[-1], **_CACHE}]}
    return {**message, **_CACHE}


def _last_step(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    start = next((i for i in reversed(range(len(sent))) if sent[i]["role"] != TOOL), 0)
    return sent[start:]


def is_own(message: Message, provider: str, model: str) -> bool:
    """Whether this very model of the provider wrote the message."""
    issuer = (message.reasoning or {}).get("issuer") or message.model
    return issuer in (model, providers.issuer(provider, model))


def _reasoning(reasoning: dict[str, Any], replays: str | None) -> dict[str, Any]:
    blocks, items = reasoning.get("blocks"), reasoning.get("items")
    text, fields = reasoning.get("text"), reasoning.get("fields")
    # Blocks go whole or not at all: a provider refuses a sequence with one missing.
    if replays == providers.BLOCKS and blocks and all(map(_is_whole, blocks)):
        return {"thinking_blocks": clean_json(blocks)}
    if replays == providers.ITEMS and items:
        return {"reasoning_items": clean_json(items)}
    if replays == providers.TEXT and text:
        return {"reasoning_content": clean_text(text)}
    if replays == providers.SIGNATURES and fields:
        return {"provider_specific_fields": clean_json(fields)}
    return {}


def _is_whole(block: dict[str, Any]) -> bool:
    return bool(block.get("signature") or block.get("data"))


def _call(call: ToolCall, ids: _Ids, own: bool) -> dict[str, Any]:
    arguments = clean_json(call.arguments) if isinstance(call.arguments, dict) else {}
    name = _NOT_IN_A_NAME.sub("_", call.name)[:64] or "unknown"
    if ids.rules.letter_first and not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"[:64]
    function = {
        "name": name,
        # A database may give the keys back in an order of its own.
        "arguments": json.dumps(arguments, ensure_ascii=False, sort_keys=True),
    }
    data: dict[str, Any] = {"id": ids.call(call.id), "type": "function", "function": function}
    if own and call.provider_fields and ids.rules.replays == providers.SIGNATURES:
        data["provider_specific_fields"] = clean_json(call.provider_fields)
    return data


def _content(message: Message, show: Show | None = None) -> str | list[dict[str, Any]]:
    text = _text(message)
    parts = [_part(part, show) for part in message.parts or () if not is_blank(part)]
    if not parts:
        return text
    first = [{"type": "text", "text": text}] if text else []
    said = first + parts
    if all(part.get("type") == "text" and part.keys() == {"type", "text"} for part in said):
        # litellm puts the texts of a list together for some providers, with nothing between.
        return "\n\n".join(part["text"] for part in said)
    return said


def _part(part: dict[str, Any], show: Show | None) -> dict[str, Any]:
    if structured.is_output(part):
        return {"type": "text", "text": structured.instruction(part)}
    if media.is_attachment(part):
        return {"type": "text", "text": media.note(part)} if show is None else show(part)
    return dict(clean_json(part))


def _text(message: Message) -> str:
    text = clean_text(message.content or "")
    return text if text.strip() else ""


class _Ids:
    """The ids of one request: what each stored id becomes."""

    def __init__(self, rules: providers.Provider) -> None:
        self.rules = rules
        self._taken: set[str] = set()
        self._times: dict[str, int] = defaultdict(int)
        self._step: dict[str, deque[str]] = {}

    def next_step(self) -> None:
        """Forget the last step's calls: results answer only their own step's."""
        self._step = {}

    def call(self, stored: str) -> str:
        """Give a call's id in the request; the first use of a valid id keeps it."""
        number = self._times[stored]
        self._times[stored] += 1
        id_ = stored.partition(SIGNATURE_IN_ID)[0]
        while number or id_ in self._taken or not self.rules.call_id.fullmatch(id_):
            id_ = _made(f"{stored}\n{number}", self.rules.id_length)
            if id_ not in self._taken:
                break
            number += 1
        self._taken.add(id_)
        self._step.setdefault(stored, deque()).append(id_)
        return id_

    def answer(self, stored: str) -> str | None:
        """Give the id of the call that a result answers; None when there is none."""
        waiting = self._step.get(stored)
        return waiting.popleft() if waiting else None


def _made(seed: str, length: int) -> str:
    number = int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest(), "big")
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)
