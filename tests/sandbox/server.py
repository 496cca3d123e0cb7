"""A reference server of the remote sandbox's protocol: files in memory, commands in a local one."""

from __future__ import annotations

import base64
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nexo_django.exceptions import ToolError
from nexo_django.sandbox.base import Sandbox
from nexo_django.sandbox.local import LocalSandbox

TOKEN = "token-1"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.boxes: dict[str, Sandbox] = {}
        # What goes wrong: "redirect", "slow", "endless", "nonsense", "drip".
        self.mode = ""
        self.seen: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def box(self, workspace: str) -> Sandbox:
        return self.boxes.setdefault(workspace, LocalSandbox(tempfile.mkdtemp()))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "who are you"})
        if self.server.mode:
            return self.fail()
        try:
            verb = self.path.removeprefix("/v1/")
            return self.answer(
                200, getattr(self, f"do_{verb}")(self.server.box(body["workspace"]), body)
            )
        except ToolError as error:
            return self.answer(400, {"error": str(error)})

    def do_read(self, box: Sandbox, body: Any) -> Any:
        data = box.read(body["path"])
        return {"content": None if data is None else base64.b64encode(data).decode()}

    def do_write(self, box: Sandbox, body: Any) -> Any:
        box.write(body["path"], base64.b64decode(body["content"]))
        return {}

    def do_remove(self, box: Sandbox, body: Any) -> Any:
        return {"removed": box.remove(body["path"])}

    def do_list(self, box: Sandbox, body: Any) -> Any:
        return {"files": [entry._asdict() for entry in box.entries()]}

    def do_run(self, box: Sandbox, body: Any) -> Any:
        return vars(box.run(body["command"], body["timeout"]))

    def answer(self, status: int, said: Any, **headers: str) -> None:
        self.raw(status, json.dumps(said).encode(), **headers)

    def raw(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self) -> None:
        mode = self.server.mode
        if mode == "redirect":
            return self.answer(302, {}, Location="http://127.0.0.1:1/stolen")
        if mode == "nonsense":
            return self.raw(200, b"\xff[]")
        if mode == "slow":
            time.sleep(3)
            return self.answer(200, {})
        self.send_response(200)
        self.end_headers()
        piece, pause = (b" " * 65536, 0.0) if mode == "endless" else (b" ", 0.1)
        try:
            for _ in range(1000 if mode == "endless" else 40):
                self.wfile.write(piece)
                time.sleep(pause)
        except OSError:
            pass

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
