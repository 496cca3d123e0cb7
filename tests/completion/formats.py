"""Strict servers of four providers' formats: each refuses what its provider would refuse.

The rules are the providers' documented ones; an answer is told once and given in each format,
whole or as a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.completion import server
from tests.completion.server import Act, Handler, Wire

Call = tuple[str, str, str]
WORD = re.compile(r"[a-zA-Z0-9_-]+")


def openai_fault(request: dict[str, Any]) -> str | None:
    """Say why OpenAI would refuse a request."""
    for message in request["messages"]:
        for call in message.get("tool_calls") or ():
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
                return "a bad name of a function"
        if wrong := _blank_part(message.get("content")):
            return wrong
    return server.fault(request)


def mistral_fault(request: dict[str, Any]) -> str | None:
    """Say why Mistral would refuse a request."""
    messages = request["messages"]
    for before, message in zip([None, *messages], messages, strict=False):
        for call in message.get("tool_calls") or ():
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"]):
                return "Tool call id must be a-z, A-Z, 0-9, with a length of 9"
        if before is not None and before["role"] == "tool" and message["role"] == "user":
            return "Unexpected role 'user' after role 'tool'"
    if messages[-1]["role"] not in ("user", "tool"):
        return "Expected last role User or Tool"
    return openai_fault(request)


def anthropic_fault(request: dict[str, Any]) -> str | None:
    """Say why Anthropic would refuse a request."""
    messages = request["messages"]
    if not messages or messages[0]["role"] != "user":
        return "the first message is not the user's"
    used: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        if not blocks or _blank_part(blocks):
            return "a message without content"
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        first = [b["type"] for b in blocks[: len(results)]]
        if sorted(results) != sorted(waiting) or first != ["tool_result"] * len(results):
            return f"tool_use ids without tool_result blocks right after: {waiting} {results}"
        if results and message["role"] != "user":
            return "results that are not the user's"
        calls = [b for b in blocks if b["type"] == "tool_use"]
        waiting = [call["id"] for call in calls]
        for call in calls:
            if call["id"] in used or not WORD.fullmatch(call["id"]):
                return f"a bad id of a tool_use: {call['id']}"
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", call["name"]):
                return f"a bad name of a tool_use: {call['name']}"
            if not isinstance(call["input"], dict):
                return "an input that is no object"
            used.add(call["id"])
        if calls and message["role"] != "assistant":
            return "calls that are not the assistant's"
    return "calls without results at the end" if waiting else None


def gemini_fault(request: dict[str, Any]) -> str | None:
    """Say why Gemini would refuse a request."""
    contents = request["contents"]
    if not contents or contents[0]["role"] != "user":
        return "the first content is not the user's"
    waiting: list[str] = []
    before = "model"
    for content in contents:
        parts, role = content["parts"], content["role"]
        if role == before == "model":
            return "contents of the model one after the other"
        answered = [
            p["function_response"]["name"] for p in map(_snake, parts) if "function_response" in p
        ]
        if answered != waiting:
            return f"function responses {answered} for the calls {waiting}"
        calls = [p["function_call"] for p in map(_snake, parts) if "function_call" in p]
        waiting = [call["name"] for call in calls]
        if calls and role != "model":
            return "calls that are not the model's"
        for call in calls:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}", call["name"]):
                return f"a bad name of a function: {call['name']}"
            if not isinstance(call.get("args", {}), dict):
                return "args that are no object"
        if not parts or any("text" in p and not p["text"].strip() for p in parts):
            return "an empty part"
        before = role
    return "calls without responses at the end" if waiting else None


def _snake(part: dict[str, Any]) -> dict[str, Any]:
    return {re.sub(r"([A-Z])", lambda m: f"_{m[1].lower()}", key): v for key, v in part.items()}


def _blank_part(content: Any) -> str | None:
    parts = content if isinstance(content, list) else []
    blank = any(p.get("type") == "text" and not p["text"].strip() for p in parts)
    return "a text part without text" if blank else None


def anthropic_answer(text: str | None = None, calls: list[Call] | None = None) -> Act:
    """Answer as Anthropic does; arguments that are no JSON can only come in a stream."""
    usage = {"input_tokens": 100, "output_tokens": 10}
    reason = "tool_use" if calls else "end_turn"
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}

    def act(handler: Handler, request: dict[str, Any]) -> None:
        if request.get("stream"):
            handler.begin_stream()
            for event in events():
                data = json.dumps(event).encode()
                handler.wfile.write(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data))
            return
        content: list[Any] = [{"type": "text", "text": text}] if text else []
        for id_, name, arguments in calls or ():
            given = json.loads(arguments)
            content.append({"type": "tool_use", "id": id_, "name": name, "input": given})
        body = {**base, "content": content, "stop_reason": reason, "usage": usage}
        handler.send(200, {**body, "stop_sequence": None})

    def events() -> Iterator[dict[str, Any]]:
        start = {**base, "content": [], "stop_reason": None, "usage": usage}
        yield {"type": "message_start", "message": start}
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if text:
            said = [{"type": "text_delta", "text": piece} for piece in server._words(text)]
            blocks.append(({"type": "text", "text": ""}, said))
        for id_, name, arguments in calls or ():
            half = len(arguments) // 2
            pieces = [arguments[:half], arguments[half:]]
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces]
            blocks.append(({"type": "tool_use", "id": id_, "name": name, "input": {}}, deltas))
        for index, (block, deltas) in enumerate(blocks):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        end = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": usage}
        yield {"type": "message_stop"}

    return act


def gemini_answer(text: str | None = None, calls: list[Call] | None = None) -> Act:
    """Answer as Gemini does: calls have no ids, and arguments are always JSON."""
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    for _, name, arguments in calls or ():
        parts.append({"functionCall": {"name": name, "args": json.loads(arguments)}})
    content = {"role": "model", "parts": parts}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    body = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini"}

    def act(handler: Handler, request: dict[str, Any]) -> None:
        if "streamGenerateContent" in handler.path:
            handler.begin_stream()
            handler.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        else:
            handler.send(200, body)

    return act


@dataclass(frozen=True)
class Format:
    """One provider: its model, where it is asked, its rules and how it answers."""

    model: str
    path: str
    fault: Callable[[dict[str, Any]], str | None]
    answer: Callable[..., Act]


FORMATS = {
    "openai": Format("openai/gpt-4o-mini", "/v1", openai_fault, server.answer),
    "mistral": Format("mistral/mistral-large-latest", "/v1", mistral_fault, server.answer),
    "anthropic": Format("anthropic/claude-sonnet-4-5", "", anthropic_fault, anthropic_answer),
    "gemini": Format("gemini/gemini-2.5-flash", "/v1beta", gemini_fault, gemini_answer),
}


class FormatHandler(Handler):
    """One request of a format."""

    def do_POST(self) -> None:
        """Check a request, then do what is next in the queue."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        act = self.server.receive(self, request)
        reason = self.server.format.fault(request)
        if reason is None:
            act(self, request)
            return
        self.server.faults.append(reason)
        error = {"message": reason, "type": "invalid_request_error", "code": 400}
        self.send(400, {"type": "error", "error": error})


class Provider(Wire):
    """A server of one format; what is queued is done in order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.RequestHandlerClass = FormatHandler
        self.format = FORMATS[name]

    def then_answer(self, text: str | None = None, calls: list[Call] | None = None) -> Provider:
        """Queue an answer."""
        self.queue.append(self.format.answer(text, calls))
        return self

    def receive(self, handler: Handler, request: dict[str, Any]) -> Act:
        """Note a request; an empty queue answers "ok"."""
        if not self.queue:
            self.then_answer("ok")
        return super().receive(handler, request)

    @property
    def options(self) -> dict[str, Any]:
        """What an agent's model call needs to ask this server."""
        address = f"http://127.0.0.1:{self.server_address[1]}{self.format.path}"
        return {"api_base": address, "api_key": "k", "max_retries": 0}
