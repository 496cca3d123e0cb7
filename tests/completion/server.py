"""A strict server of the OpenAI chat format for tests: it does what the test queued.

It refuses, with the reason, every request that a provider would refuse; `requests` keeps all.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler", dict[str, Any]], None]
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "total_tokens": 1100,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 30},
}


def fault(request: dict[str, Any]) -> str | None:
    """Say why a provider would refuse a request."""
    messages = request.get("messages") or []
    open_ids: set[str] = set()
    used: set[str] = set()
    for index, message in enumerate(messages):
        where = f"message {index} ({message.get('role')})"
        calls = message.get("tool_calls") or []
        content = message.get("content")
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                return f"{where}: answers no open call"
            open_ids.discard(message["tool_call_id"])
        elif open_ids:
            return f"{where}: calls without a result"
        if message.get("role") == "system" and index:
            return f"{where}: not in front"
        if isinstance(content, str) and not content.strip():
            return f"{where}: empty text"
        if content is None and not calls:
            return f"{where}: says nothing"
        for call in calls:
            if call["id"] in used or not 0 < len(call["id"]) <= 64:
                return f"{where}: bad call id"
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return f"{where}: arguments are no object"
            used.add(call["id"])
            open_ids.add(call["id"])
    return "calls without a result" if open_ids or not messages else None


class Handler(BaseHTTPRequestHandler):
    """One request: check it, then do what is next in the queue."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Wire

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a chat request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        act = self.server.receive(self, request)
        reason = fault(request)
        if reason is not None:
            self.server.faults.append(reason)
            error = {"message": reason, "type": "invalid_request_error", "code": None}
            self.send(400, {"error": error})
        else:
            act(self, request)

    def send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer: JSON, or text as HTML."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "text/html" if isinstance(body, str) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        """Send the head of a stream."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
        """Send one chunk of a stream."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        data = {**_base("chat.completion.chunk"), "choices": [choice], **more}
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()


class Wire(ThreadingHTTPServer):
    """The server; what is queued is done in order, and an empty queue answers "ok"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[str] = []
        self.queue: deque[Act] = deque()
        self.released = threading.Event()
        self.received = threading.Condition()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> Wire:
        # The default looks for the end every half second, which every test would wait for.
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is what some tests are about."""

    def receive(self, handler: Handler, request: dict[str, Any]) -> Act:
        """Note a request, and give what is to be done with it."""
        with self.received:
            self.requests.append(request)
            self.headers.append({k.lower(): v for k, v in handler.headers.items()})
            self.received.notify_all()
            return self.queue.popleft() if self.queue else answer("ok")

    def wait_for(self, count: int, timeout: float = 60) -> None:
        """Wait until so many requests were received."""
        with self.received:
            assert self.received.wait_for(lambda: len(self.requests) >= count, timeout)

    def then(self, *acts: Act) -> Wire:
        """Queue what to do with the next requests."""
        self.queue.extend(acts)
        return self


def _base(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "created": 1, "model": "wire", "object": kind}


def answer(
    text: str | None = None,
    calls: list[tuple[str, str, str]] | None = None,
    *,
    reasoning: str | None = None,
    finish: str | None = None,
    usage: dict[str, Any] | None = USAGE,
) -> Act:
    """Answer with text and calls, each an id, a name and the arguments' text."""
    made = [
        {"index": i, "id": id_, "type": "function", "function": {"name": n, "arguments": a}}
        for i, (id_, n, a) in enumerate(calls or [])
    ]
    reason = finish or ("tool_calls" if made else "stop")

    def act(handler: Handler, request: dict[str, Any]) -> None:
        if request.get("stream"):
            _stream(handler, request)
            return
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if made:
            message["tool_calls"] = made
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = {**_base("chat.completion"), "choices": [choice]}
        handler.send(200, body if usage is None else {**body, "usage": usage})

    def _stream(handler: Handler, request: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.event({"role": "assistant", "content": ""})
        for piece in _words(reasoning):
            handler.event({"reasoning_content": piece})
        for piece in _words(text):
            handler.event({"content": piece})
        for call in made:
            arguments = call["function"]["arguments"]
            half = len(arguments) // 2
            first = {"name": call["function"]["name"], "arguments": arguments[:half]}
            handler.event({"tool_calls": [{**call, "function": first}]})
            rest = {"index": call["index"], "function": {"arguments": arguments[half:]}}
            handler.event({"tool_calls": [rest]})
        handler.event({}, reason)
        if usage is not None and (request.get("stream_options") or {}).get("include_usage"):
            data = {**_base("chat.completion.chunk"), "choices": [], "usage": usage}
            handler.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        handler.wfile.write(b"data: [DONE]\n\n")

    return act


def _words(text: str | None) -> Iterator[str]:
    words = (text or "").split(" ")
    for index, word in enumerate(words):
        if text:
            yield word if index == len(words) - 1 else f"{word} "


def fail(status: int, message: str = "failed", **options: Any) -> Act:
    """Answer with an error of that status; options: code, type, headers."""
    headers = options.pop("headers", None)
    error = {"message": message, "type": "server_error", "code": None, **options}
    return lambda handler, request: handler.send(status, {"error": error}, headers)


def html(status: int = 200) -> Act:
    """Answer with a page, as a proxy in the way does."""
    return lambda handler, request: handler.send(status, "<html><body>Gateway</body></html>")


def hang(handler: Handler, request: dict[str, Any]) -> None:
    """Answer nothing until the server ends."""
    handler.server.released.wait(120)


def cut(text: str, how: str = "end") -> Act:
    """Stream some text, then end the connection: as if at the end, by a reset, or hang."""

    def act(handler: Handler, request: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.event({"role": "assistant", "content": text} if text else {"role": "assistant"})
        if how == "hang":
            hang(handler, request)
        if how == "reset":
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()

    return act
