"""The embedded model `nexo/offline`: a few rules, no key and no network, honest about it.

It makes the first run, the tutorial and the tests real from end to end: it streams, remembers
what the conversation told it, and calls the tools it is offered when asked to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nexo_django import events, media, structured, transcript
from nexo_django.compaction.record import OPENING
from nexo_django.completion import catalogue
from nexo_django.completion.answer import deliver, deliver_partial, tell
from nexo_django.completion.catalogue import OFFLINE
from nexo_django.completion.offline_output import filled
from nexo_django.completion.shown import Shown
from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    SUMMARY,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.pipeline import Env

MODEL = OFFLINE
ABOUT = (
    "I am nexo/offline, a rule-based model and not a language model: I follow a few rules. Tell"
    ' me a fact ("My name is Mac."), ask for it ("What is my name?"), or ask for a tool'
    ' ("call NAME {json}").'
)
_FACT = re.compile(
    r"\bmy (?P<what>[a-z][\w' -]{0,40}?) is (?:called |named )?"
    r"(?P<value>(?:(?! and my )[^.!?\n;,]|(?<=\d)[.,](?=\d)){1,200})",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"\b(?:what(?:'s| is| was)|who(?:'s| is)|tell me|remember|know|say|repeat) my"
    r" (?P<what>[a-z][\w' -]{0,40}?) ?(?:is|was)? ?(?:\?|[.!]|$)",
    re.IGNORECASE,
)
_ALL_FACTS = re.compile(r"\bwhat do you (?:know|remember)\b|\bwho am i\b", re.IGNORECASE)
_HELP = re.compile(r"^\s*(?:help|what can you do|who are you|what are you)\b", re.IGNORECASE)
_CALL = re.compile(r"\s*(?:please )?call (?:the (?:tool )?)?", re.IGNORECASE)
_LOOP = re.compile(r"\s*loop (\d{1,6}) ", re.IGNORECASE)
_NAME = re.compile(r"([\w.-]+)\s*")
_USE = re.compile(
    r"\s*(?:please )?(?:use|run|ask) (?:the )?(?:tool )?(?P<name>[\w.-]+)(?: tool)?"
    r"(?: with (?P<pairs>.+?))?\s*[.!]?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_PAIR = re.compile(
    r"(\w+)\s*[=:]\s*(\"[^\"]*\"|'[^']*'|.+?)(?=\s*(?:,|\band\b)\s*\w+\s*[=:]|$)", re.S
)
_PROMPT = re.compile(r"^\[?user\b[\]:]*(.+)$", re.IGNORECASE | re.MULTILINE)
_PIECE = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+")
SHOWN = 2_000
_REMEMBERED = 100


@dataclass(frozen=True)
class _Asked:
    """What the rules look at: the conversation, its last prompt, and what came after that."""

    messages: Sequence[Message]
    text: str
    results: tuple[Message, ...]
    tools: dict[str, Any]

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Sequence[Any]) -> _Asked:
        last = max((i for i, m in enumerate(messages) if m.role == USER), default=-1)
        return cls(
            messages,
            _said(messages[last]) if last >= 0 else "",
            tuple(m for m in messages[last + 1 :] if m.role == TOOL),
            {tool.name: tool for tool in tools},
        )


def refuse_other(model: str) -> None:
    """Raise ConfigurationError for a model's id that begins like ours and is not."""
    if model.startswith("nexo/") and model != MODEL:
        raise ConfigurationError(f"There is no model {brief(model)}. Did you mean {MODEL!r}?")


def complete(env: Env) -> None:
    """Answer the env's messages and append the answer: the terminal app of a pipeline."""
    messages = _read_files(env, transcript.request(env.messages))
    env.hook(events.BEFORE_LLM, {"model": MODEL, "messages": len(messages)})
    text, calls = answer(messages, env.tools)
    message = Message(
        ASSISTANT,
        text or None,
        tool_calls=calls or None,
        model=MODEL,
        finish_reason="tool_calls" if calls else "stop",
        usage=_usage(messages, env.tools, text, calls),
    )
    if env.stream:
        _stream(env, text)
        deliver(env, message)
    else:
        deliver(env, message)
        tell(env, text, "")


def answer(
    messages: Sequence[Message], tools: Sequence[Any] = ()
) -> tuple[str, tuple[ToolCall, ...]]:
    """Give the text, or the tool calls, that answer a conversation; the same every time."""
    asked = _Asked.of(messages, tools)
    calls, wrong = _calls(asked)
    if wrong:
        return wrong, ()
    if calls:
        return "", calls
    if wanted := structured.asked(messages):
        told = _said(messages[transcript.last_prompt(messages) or 0])
        return filled(wanted["schema"], told, _facts(messages)), ()
    if asked.results:
        return _report(asked), ()
    return _talk(asked), ()


def _read_files(env: Env, messages: list[Message]) -> list[Message]:
    """Put the text of attached files into the messages, and a note for what is no text."""
    facts = catalogue.facts(MODEL)
    show = Shown(env, messages, facts)

    def told(part: dict[str, Any]) -> dict[str, Any]:
        if not media.is_attachment(part):
            return part
        if media.is_text(str(part.get("media_type"))):
            return show(part)
        return {"type": "text", "text": media.note(part)}

    return [m.replace(parts=tuple(map(told, m.parts))) if m.parts else m for m in messages]


def _stream(env: Env, text: str) -> None:
    said: list[str] = []
    try:
        for piece in _PIECE.findall(text):
            env.checkpoint()
            said.append(piece)
            tell(env, piece, "")
    except BaseException:
        partial = Message(ASSISTANT, "".join(said), model=MODEL, status=INTERRUPTED)
        deliver_partial(env, partial)
        raise


def _talk(asked: _Asked) -> str:
    if _is_summary(asked):
        return _summary(asked)
    facts = _facts(asked.messages)
    if question := _QUESTION.search(asked.text):
        what = _key(question["what"])
        known = facts.get(what)
        return f"Your {what} is {known}." if known else f"I do not know your {what}."
    if _ALL_FACTS.search(asked.text):
        return _listed(facts) or "I do not know anything about you yet."
    if told := _facts([Message(USER, asked.text)]):
        return f"Noted. {_listed(told)}"
    if _HELP.search(asked.text):
        offered = ", ".join(sorted(asked.tools))
        return f"{ABOUT} Tools I am offered: {offered}." if offered else ABOUT
    return f"{ABOUT} You said: {_short(asked.text)}"


def _listed(facts: dict[str, str]) -> str:
    return " ".join(f"Your {what} is {value}." for what, value in facts.items())


def _facts(messages: Sequence[Message]) -> dict[str, str]:
    """Give what the user told, the newest of each last; a summary keeps what it replaced."""
    found: dict[str, str] = {}
    for message in messages:
        if message.role != USER and message.kind != SUMMARY:
            continue
        text = re.sub(r"(?i)\byour\b", "my", _said(message)) if message.kind == SUMMARY else None
        for match in _FACT.finditer(text or _said(message)):
            what = _key(match["what"])
            found.pop(what, None)
            found[what] = match["value"].strip(" \"'")
    return dict(list(found.items())[-_REMEMBERED:])


def _key(what: str) -> str:
    return " ".join(what.lower().split())


def _calls(asked: _Asked) -> tuple[tuple[ToolCall, ...], str]:
    done, text = len(asked.results), asked.text
    if loop := _LOOP.match(text):
        wanted, wrong = _read_calls(text[loop.end() :])
        wanted = wanted[:1] if done < int(loop[1]) else []
    elif done:
        return (), ""
    elif start := _CALL.match(text):
        wanted, wrong = _read_calls(text[start.end() :])
    else:
        wanted, wrong = _read_use(text, asked.tools), ""
    if wanted and not asked.tools:
        return (), "I was offered no tools, so I can't call one."
    before = sum(len(message.calls) for message in asked.messages)
    made = enumerate(wanted, start=before + 1)
    return tuple(ToolCall(f"call_{n}", name, given) for n, (name, given) in made), wrong


Wanted = list[tuple[str, dict[str, Any]]]


def _read_calls(text: str) -> tuple[Wanted, str]:
    """Read 'name {json}; name {json}'; text that is no call at all gives nothing."""
    wanted: Wanted = []
    at = 0
    while at < len(text) and (name := _NAME.match(text, at)):
        at = name.end()
        if not text.startswith("{", at):
            return (wanted, "") if not wanted else ([], _unreadable(name[1]))
        try:
            given, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            return [], _unreadable(name[1])
        wanted.append((name[1], given))
        at = (re.compile(r"[\s;.]*").match(text, at) or name).end()
    return wanted, ""


def _unreadable(name: str) -> str:
    return f"I can't read the arguments of {name}: they have to be a JSON object."


def _read_use(text: str, tools: dict[str, Any]) -> Wanted:
    match = _USE.match(text)
    if match is None or match["name"] not in tools:
        return []
    types = _types(tools[match["name"]])
    pairs = _PAIR.findall((match["pairs"] or "").strip())
    return [(match["name"], {key: _value(raw, types.get(key)) for key, raw in pairs})]


def _types(tool: Any) -> dict[str, Any]:
    schema = tool.definition()["function"].get("parameters") or {}
    return {name: rule.get("type") for name, rule in schema.get("properties", {}).items()}


def _value(raw: str, type_: Any) -> Any:
    text = raw.strip().strip("\"'")
    if type_ == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _report(asked: _Asked) -> str:
    names = {call.id: call.name for message in asked.messages for call in message.calls}
    lines = []
    for result in asked.results:
        name = names.get(result.tool_call_id or "", "tool")
        verb = "failed" if result.is_error else "returned"
        lines.append(f"The {name} tool {verb}: {_short(_said(result))}")
    return "\n".join(lines)


def _is_summary(asked: _Asked) -> bool:
    told = next((m for m in asked.messages if m.role == SYSTEM), None)
    return told is not None and _said(told).startswith(OPENING)


def _summary(asked: _Asked) -> str:
    facts = _facts([Message(USER, asked.text, kind=SUMMARY)])
    first = _PROMPT.search(asked.text)
    began = f"The user began with: {_short(first[1].strip(), 120)}" if first else ""
    return f"{_listed(facts)} {began}".strip() or "Nothing was told that I could keep."


def _said(message: Message) -> str:
    texts = [message.content or ""]
    texts += [str(p.get("text", "")) for p in message.parts or () if p.get("type") == "text"]
    return " ".join(text for text in texts if text)


def _short(text: str, limit: int = SHOWN) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _usage(
    messages: Sequence[Message], tools: Sequence[Any], text: str, calls: Sequence[ToolCall]
) -> Usage:
    sent = sum(map(len, _written(messages))) + sum(len(json.dumps(t.definition())) for t in tools)
    written = len(text) + sum(map(len, _written([Message(ASSISTANT, tool_calls=tuple(calls))])))
    return Usage(input=sent // 4 + 1, output=written // 4 + 1, cost=Decimal(0))


def _written(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield _said(message)
        for call in message.calls:
            yield call.name
            yield json.dumps(call.arguments, default=str)
