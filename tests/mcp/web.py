"""A small MCP server over HTTP that misbehaves as its tools' names say."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = ("whoami", "flood", "flood_events", "bomb", "hang", "broken", "away")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Web

    def handle(self) -> None:
        # A client that left is what some tests are about.
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(405, b"")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sent = self.headers.get("Authorization")
        self.server.seen.append((request["method"], sent))
        if self.server.token is not None and sent != f"Bearer {self.server.token}":
            self.reply(401, json.dumps({"error": f"no entry with {sent}"}).encode())
        elif "id" not in request:
            self.reply(202, b"")
        else:
            self.answer(request)

    def answer(self, request: dict[str, Any]) -> None:
        method, result = request["method"], None
        if method == "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            }
        elif method == "tools/list":
            schema = {"type": "object", "properties": {}}
            result = {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
        elif method == "tools/call":
            result = getattr(self, request["params"]["name"])()
            if result is None:
                return
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            self.json({"jsonrpc": "2.0", "id": request["id"], "error": error})
        else:
            self.json({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def json(self, value: Any) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def whoami(self) -> dict[str, Any]:
        sent = self.headers.get("Authorization", "")
        return {"content": [{"type": "text", "text": f"{sent} {self.headers.get('X-Team', '')}"}]}

    def flood(self, kind: str = "application/json", start: bytes = b"") -> None:
        """Send a body without an end."""
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(start)
            while not self.server.over.is_set():
                self.wfile.write(b" " * 65536)
                self.server.sent += 65536

    def flood_events(self) -> None:
        self.flood("text/event-stream", b"event: message\ndata: ")

    def bomb(self) -> None:
        """Send a body that is much larger than it looks."""
        body = gzip.compress(b" " * 50_000_000, 1)
        self.reply(200, body, {"Content-Type": "application/json", "Content-Encoding": "gzip"})

    def hang(self) -> None:
        self.server.over.wait(300)
        self.close_connection = True

    def broken(self) -> None:
        self.reply(500, b"<html>Internal Server Error</html>", {"Content-Type": "text/html"})

    def away(self) -> None:
        self.reply(307, b"", {"Location": "http://localhost:1/elsewhere"})


class Web(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.token: str | None = None
        self.seen: list[tuple[str, str | None]] = []
        self.sent = 0
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


@contextlib.contextmanager
def running(port: int = 0) -> Iterator[Web]:
    """Serve while the block runs."""
    with Web(port) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield web
        finally:
            web.over.set()
            web.shutdown()
            thread.join(30)


if __name__ == "__main__":
    with running() as served:
        print(served.url, flush=True)
        time.sleep(600)
