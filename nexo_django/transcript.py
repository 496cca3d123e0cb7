"""What a list of messages means: its turns, steps and legal cuts, what is wrong, and its repair.

Pure and total: every function takes any list, changes nothing in it, and looks at fields
only, never for marks in a text that a user could have written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nexo_django.messages import (
    ASSISTANT,
    NORMAL,
    NOTICE,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    is_blank,
)
from nexo_django.sanitize import clean_json, clean_text

INTERRUPTED_TEXT = "The call was interrupted; whether it took effect is unknown."
NO_OUTPUT_TEXT = "(no output)"
NO_BEGINNING_TEXT = "(What came before is no longer shown.)"


def system_end(messages: Sequence[Message]) -> int:
    """Give the index of the first message that is not of the system, at the front."""
    return next((i for i, m in enumerate(messages) if m.role != SYSTEM), len(messages))


def is_prompt(message: Message) -> bool:
    """Whether a person wrote the message: it begins a turn."""
    return message.role == USER and message.kind == NORMAL and message.mark is None


def last_prompt(messages: Sequence[Message]) -> int | None:
    """Give the index of the prompt that the model is at work on."""
    return next((i for i in reversed(range(len(messages))) if is_prompt(messages[i])), None)


def turns(messages: Sequence[Message]) -> list[range]:
    """Give the turns as ranges of indexes: each from a prompt to before the next."""
    starts = [i for i, message in enumerate(messages) if is_prompt(message)]
    return [range(a, b) for a, b in pairwise([*starts, len(messages)])]


def steps(messages: Sequence[Message], start: int = 0) -> list[range]:
    """Give the steps as ranges of indexes: an assistant message and the results after it."""
    heads = (i for i in range(start, len(messages)) if messages[i].role == ASSISTANT)
    return [range(i, _results_end(messages, i)) for i in heads]


def legal_cuts(messages: Sequence[Message]) -> list[int]:
    """Give the indexes where the messages may be cut in two without parting a step."""
    ends = range(system_end(messages), len(messages))
    return [i for i in ends if messages[i].role != TOOL]


def open_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Give the calls of the last step that have no result yet, in call order.

    Nothing is open once a message of another kind follows the step.
    """
    index = len(messages) - 1
    while index >= 0 and messages[index].role == TOOL:
        index -= 1
    if index < 0 or messages[index].role != ASSISTANT:
        return []
    answered = {message.tool_call_id for message in messages[index + 1 :]}
    return [call for call in messages[index].calls if call.id not in answered]


def interrupted_result(call: ToolCall) -> Message:
    """Make the result of a call that was cut short."""
    return Message(TOOL, INTERRUPTED_TEXT, tool_call_id=call.id, is_error=True)


def distinct(message: Message) -> Message:
    """Give the message with calls that a request may hold.

    Every call has an id of its own within the message, and a JSON object for arguments.
    """
    seen: set[str] = set()
    calls = [_distinct_call(call, index, seen) for index, call in enumerate(message.calls)]
    if all(new is old for new, old in zip(calls, message.calls, strict=True)):
        return message
    return message.replace(tool_calls=tuple(calls))


def repaired(messages: Sequence[Message], *, keep_open: bool = False) -> list[Message]:
    """Give the messages as they can be replayed, whatever happened to them.

    Messages that need nothing are the same objects, and a valid list comes back equal. One
    system message is kept, the first, in front. A call without a result gets an interrupted
    one, in the last step only unless `keep_open`; a result that came late goes to its call;
    one without a call, or a second one, is left out.
    """
    systems = (_without_calls(m) for m in messages if m.role == SYSTEM)
    system = next((m for m in systems if m.says_something), None)
    entries = _paired([m for m in messages if m.role != SYSTEM])
    body: list[Message] = []
    for number, entry in enumerate(entries, start=1):
        body += entry.flat(fill=not (keep_open and number == len(entries)))
    first = next((m for m in body if m.says_something), None)
    if first is not None and first.role != USER:
        body.insert(0, Message(USER, NO_BEGINNING_TEXT, kind=NOTICE))
    return [system, *body] if system is not None else body


def sendable(messages: Sequence[Message]) -> list[Message]:
    """Give the messages that a provider gets, in its order.

    What says nothing is left out, be it a message or a text part, an empty result says so,
    and the results of parallel calls come in call order.
    """
    sent: list[Message] = []
    for group in _groups(messages):
        head, *_ = step = [_without_blanks(messages[i]) for i in group]
        order = {call.id: index for index, call in enumerate(head.calls)}
        results = [m for m in step if m.role == TOOL]
        results.sort(key=lambda m: order.get(m.tool_call_id or "", len(order)))
        if head.role != TOOL and head.says_something:
            sent.append(head)
        sent += [m if m.says_something else m.replace(content=NO_OUTPUT_TEXT) for m in results]
    return sent


def request(messages: Sequence[Message]) -> list[Message]:
    """Give the messages that a provider gets, mended where it would refuse them."""
    sent = sendable(messages)
    return sent if problem(sent) is None else sendable(repaired(messages))


def problem(messages: Sequence[Message]) -> str | None:
    """Say why a provider would refuse the messages, or None when it would not.

    The answer names indexes and roles only, never content.
    """
    open_ids: set[str] = set()
    began = False
    for index, message in enumerate(messages):
        where = f"message {index} ({message.role})"
        if message.role == TOOL:
            if message.tool_call_id not in open_ids:
                return f"{where}: a result without its call in the same step"
            open_ids.discard(message.tool_call_id or "")
        elif open_ids:
            return f"{where}: calls before it have no result: {len(open_ids)}"
        if message.role == SYSTEM and index:
            return f"{where}: a system message that is not the first message"
        if not message.says_something:
            return f"{where}: empty"
        if any(map(is_blank, message.parts or ())):
            return f"{where}: an empty text part"
        if message.role != SYSTEM and not began and message.role != USER:
            return f"{where}: the conversation does not begin with a user message"
        began = began or message.role == USER
        for call in message.calls:
            if wrong := _wrong(call, open_ids, message.role):
                return f"{where}: {wrong}"
            open_ids.add(call.id)
    if open_ids:
        return f"calls without a result at the end: {len(open_ids)}"
    return None if began else "there is no user message"


@dataclass
class _Entry:
    """A message, with a place for the result of each of its calls."""

    message: Message
    results: list[Message | None] = field(default_factory=list)

    def flat(self, fill: bool) -> Iterator[Message]:
        yield self.message
        for call, result in zip(self.message.calls, self.results, strict=True):
            if result is not None:
                yield result
            elif fill:
                yield interrupted_result(call)


def _paired(messages: Sequence[Message]) -> list[_Entry]:
    entries: list[_Entry] = []
    # Providers repeat ids, so a result belongs to the latest message that used its id.
    waiting: dict[str, tuple[_Entry, list[int]]] = {}
    for message in messages:
        if message.role == TOOL:
            entry, places = waiting.get(_key(message.tool_call_id), (None, []))
            if entry is not None and places:
                place = places.pop(0)
                entry.results[place] = _answering(message, entry.message.calls[place])
            continue
        usable = distinct(message) if message.role == ASSISTANT else _without_calls(message)
        entries.append(_Entry(usable, [None] * len(usable.calls)))
        ids: dict[str, list[int]] = {}
        for place, call in enumerate(usable.calls and message.calls):
            ids.setdefault(_key(call.id), []).append(place)
        waiting.update({id_: (entries[-1], places) for id_, places in ids.items()})
    return entries


def _answering(result: Message, call: ToolCall) -> Message:
    if result.tool_calls:
        result = _without_calls(result)
    return result if result.tool_call_id == call.id else result.replace(tool_call_id=call.id)


def _without_calls(message: Message) -> Message:
    return message.replace(tool_calls=None) if message.calls else message


def _without_blanks(message: Message) -> Message:
    if not any(map(is_blank, message.parts or ())):
        return message
    kept = tuple(part for part in message.parts or () if not is_blank(part))
    return message.replace(parts=kept or None)


def _key(id_: object) -> str:
    return clean_text(str(id_ or ""))


def _distinct_call(call: ToolCall, index: int, seen: set[str]) -> ToolCall:
    id_ = _key(call.id)
    if not id_ or id_ in seen:
        id_ = f"{id_ or 'call'}-{index + 1}"
        while id_ in seen:
            id_ += "-"
    seen.add(id_)
    name = call.name if isinstance(call.name, str) and call.name else str(call.name or "unknown")
    arguments, raw = call.arguments, call.raw_arguments
    if not _is_object(arguments):
        cleaned = clean_json(arguments)
        arguments = cleaned if isinstance(cleaned, dict) else {}
        raw = raw if raw is not None or isinstance(cleaned, dict) else json.dumps(cleaned)
    if (id_, name) == (call.id, call.name) and arguments is call.arguments:
        return call
    return ToolCall(id_, name, arguments, raw, call.provider_fields, call.extra)


def _wrong(call: ToolCall, open_ids: set[str], role: str) -> str | None:
    if role != ASSISTANT:
        return "only an assistant message may call tools"
    if not call.id or call.id in open_ids:
        return "a call without an id of its own"
    return None if _is_object(call.arguments) else "arguments that are not a JSON object"


def _is_object(value: object) -> bool:
    try:
        return isinstance(value, dict) and bool(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return False


def _groups(messages: Sequence[Message]) -> Iterator[range]:
    index = 0
    while index < len(messages):
        end = _results_end(messages, index)
        yield range(index, end)
        index = end


def _results_end(messages: Sequence[Message], index: int) -> int:
    end = index + 1
    while end < len(messages) and messages[end].role == TOOL:
        end += 1
    return end
