"""Assembling one answer, from a whole response or from its chunks, and handing it to the turn.

Everything is read by name from objects or dictionaries, so that no provider library is needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from nexo_django import events
from nexo_django.messages import ASSISTANT, INTERRUPTED, Message, ToolCall, Usage
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_json

logger = logging.getLogger(__name__)
# litellm hides Gemini's signature in the id of a call; it is a field of the call's own.
SIGNATURE_IN_ID = "__thought__"
SIGNATURE = "thought_signature"
_TOLD_ELSEWHERE = frozenset({"reasoning_content", "reasoning", "thinking_blocks", "refusal"})


def read(value: Any, name: str) -> Any:
    """Give a field of an object or a dictionary; None when it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class Assembly:
    """An answer as far as it has come.

    `began` turns true with the first text, reasoning or call: from there on the request must
    not be sent again, since someone may have read it. `reported` is False when the usage is
    no report of the provider's.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.began = False
        self.reported = True
        self.finish_reason: str | None = None
        self.usage: Any = None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._blocks: list[dict[str, Any]] = []
        self._items: list[Any] = []
        self._fields: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def thoughts(self) -> str:
        """The reasoning that may be shown, so far."""
        return "".join(self._thoughts)

    def add(self, chunk: Any) -> tuple[str, str]:
        """Take a chunk, or a whole response, and give the text and reasoning that it brought."""
        self.usage = read(chunk, "usage") or self.usage
        said = thought = ""
        for choice in (read(chunk, "choices") or ())[:1]:
            self.finish_reason = read(choice, "finish_reason") or self.finish_reason
            message = read(choice, "delta") or read(choice, "message")
            if message is not None:
                said, thought = self._add(message)
        return said, thought

    def _add(self, message: Any) -> tuple[str, str]:
        said = _plain(read(message, "content")) or _plain(read(message, "refusal"))
        thought = _plain(read(message, "reasoning_content"))
        calls = read(message, "tool_calls") or ()
        self._text.append(said)
        self._thoughts.append(thought)
        for block in read(message, "thinking_blocks") or ():
            self._add_block(block)
        self._items += clean_json(_data(read(message, "reasoning_items")) or [])
        self._add_fields(read(message, "provider_specific_fields"))
        for call in calls:
            self._add_call(call)
        self.began = self.began or bool(said or thought or calls)
        return said, thought

    def _add_block(self, block: Any) -> None:
        data = clean_json(_data(block))
        last = self._blocks[-1] if self._blocks else {}
        if data.get("type") != "thinking" or not _is_open(last) or _is_next(last, data):
            self._blocks.append(data)
            return
        last["thinking"] = (last.get("thinking") or "") + (data.get("thinking") or "")
        if data.get("signature"):
            last["signature"] = data["signature"]

    def _add_fields(self, fields: Any) -> None:
        for name, value in (clean_json(_data(fields)) or {}).items():
            if value is None or name in _TOLD_ELSEWHERE:
                continue
            before: Any = self._fields.get(name)
            both = isinstance(before, list) and isinstance(value, list)
            self._fields[name] = before + value if both else value

    def _add_call(self, part: Any) -> None:
        function = read(part, "function")
        call = self._call(read(part, "index"), read(part, "id"), read(function, "name"))
        arguments = read(function, "arguments")
        if arguments:
            whole = isinstance(arguments, str)
            call.arguments += arguments if whole else json.dumps(clean_json(_data(arguments)))
        call.fields.update(clean_json(_data(read(part, "provider_specific_fields"))) or {})
        call.fields.update(clean_json(_data(read(function, "provider_specific_fields"))) or {})

    def _call(self, index: int | None, id_: str | None, name: str | None) -> _Call:
        place = index if index is not None else len(self._calls) - (0 if id_ or name else 1)
        call = self._by_index.get(place)
        # Some providers give every parallel call the index 0; a new id and name tell them apart.
        if call is None or (id_ and name and call.id and id_ != call.id):
            call = self._by_index[place] = _Call()
            self._calls.append(call)
        call.id = call.id or id_ or ""
        call.name = name or call.name
        return call

    def message(self, model: str, cost: Callable[[Any], Decimal | None]) -> Message:
        """Give the finished answer as a message."""
        calls = self._tool_calls()
        return Message(
            ASSISTANT,
            self.text or (None if calls else ""),
            tool_calls=calls or None,
            reasoning=self._reasoning(),
            model=model,
            finish_reason=self.finish_reason,
            usage=usage_of(self.usage, cost) if self.reported else None,
        )

    def partial(self, model: str) -> Message:
        """Give what came before the end, as an interrupted message; calls are not whole."""
        return Message(ASSISTANT, self.text, model=model, status=INTERRUPTED)

    def _reasoning(self) -> dict[str, Any] | None:
        kept = {
            "text": self.thoughts,
            # A block's index belongs to the stream; a provider refuses it in a request.
            "blocks": [{k: v for k, v in b.items() if k != "index"} for b in self._blocks],
            "items": self._items,
            "fields": self._fields,
        }
        kept = {name: value for name, value in kept.items() if value}
        return {"issuer": self.issuer, **kept} if kept else None

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        # Nothing can be run, or replayed, without a name.
        return tuple(_tool_call(call, taken) for call in self._calls if call.name)


def _is_next(last: dict[str, Any], data: dict[str, Any]) -> bool:
    return data.get("index", last.get("index")) != last.get("index")


def _is_open(block: dict[str, Any]) -> bool:
    return block.get("type") == "thinking" and not block.get("signature")


def _tool_call(call: _Call, taken: set[str]) -> ToolCall:
    id_, _, signature = call.id.partition(SIGNATURE_IN_ID)
    fields = {name: value for name, value in call.fields.items() if value is not None}
    if signature:
        fields.setdefault(SIGNATURE, signature)
    arguments = parsed(call.arguments)
    return ToolCall(
        id=_unused(id_ or "call", taken),
        name=call.name,
        arguments=arguments or {},
        raw_arguments=call.arguments if arguments is None else None,
        provider_fields=fields or None,
    )


def _unused(id_: str, taken: set[str]) -> str:
    unused, number = id_, 1
    while unused in taken:
        number += 1
        unused = f"{id_}_{number}"
    taken.add(unused)
    return unused


def parsed(arguments: str) -> dict[str, Any] | None:
    """Read arguments; None when they are no JSON object. No text at all is an empty one."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def usage_of(reported: Any, cost: Callable[[Any], Decimal | None]) -> Usage | None:
    """Read a provider's report of tokens; None when there was none, or one of zeros."""
    if not (_count(reported, "prompt_tokens") or _count(reported, "completion_tokens")):
        return None
    before, after = (read(reported, f"{n}_tokens_details") for n in ("prompt", "completion"))
    return Usage(
        input=_count(reported, "prompt_tokens"),
        output=_count(reported, "completion_tokens"),
        cached=_count(before, "cached_tokens") or _count(reported, "cache_read_input_tokens"),
        cache_write=_count(before, "cache_write_tokens", "cache_creation_tokens")
        or _count(reported, "cache_creation_input_tokens"),
        reasoning=_count(after, "reasoning_tokens"),
        cost=cost(reported),
        raw=clean_json(_data(reported)),
    )


def _count(value: Any, *names: str) -> int:
    found = (read(value, name) for name in names)
    return next((int(n) for n in found if isinstance(n, int | float) and n > 0), 0)


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_plain(read(part, "text")) for part in content)
    return content if isinstance(content, str) else ""


def _data(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    return [_data(item) for item in value] if isinstance(value, list | tuple) else value


def tell(env: Env, said: str, thought: str) -> None:
    """Emit a piece of an answer."""
    if thought:
        env.emit(events.REASONING, {"text": thought})
    if said:
        env.emit(events.CONTENT, {"text": said})


def deliver(env: Env, message: Message) -> None:
    """Append the finished answer, and note what it used."""
    env.messages.append(message)
    env.metadata["last_llm_usage"] = message.usage
    env.hook(events.AFTER_LLM, {"model": message.model, "message": message})


def deliver_partial(env: Env, message: Message) -> None:
    """Append what came of an answer that was cut off, if that is anything.

    The reason of the cut is on its way to the caller, and must not be replaced by another.
    """
    if not message.says_something:
        return
    try:
        env.messages.append(message)
    except Exception as error:
        logger.warning("A partial answer was not kept: %s", type(error).__name__)
