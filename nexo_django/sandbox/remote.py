"""The remote sandbox: files and commands at a server of the host's, over a small protocol.

Every request is a POST of JSON to `<base_url>/<verb>` with the chat's `workspace`, and every
answer is JSON. The verbs are read, write, remove, list and run; docs/how-to/sandboxes.md has
them. An answer other than 200 may say why in `error`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.sandbox.base import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_OUTPUT_BYTES,
    SECONDS,
    Entry,
    Place,
    Sandbox,
    ShellResult,
    Watch,
)
from nexo_django.sandbox.commands import runnable, seconds
from nexo_django.sandbox.paths import file_inside

MAX_ANSWER = 20_000_000
_CONNECT_SECONDS, _GRACE_SECONDS = 10.0, 10.0


class RemoteSandbox(Sandbox):
    """A workspace for each chat at `base_url`. What it isolates is the server's to say.

    `token` is a text or a function that gives one; it is asked for each request, and sent
    only to this server: redirects are not followed.
    """

    name = "remote"
    has_shell = True

    def __init__(
        self,
        base_url: str,
        *,
        token: str | Callable[[], str] | None = None,
        timeout: float = 30.0,
        max_file_bytes: int = MAX_FILE_BYTES,
        workspace: str = "",
    ) -> None:
        super().__init__()
        split = urlsplit(base_url if isinstance(base_url, str) else "")
        if split.scheme not in ("http", "https") or not split.hostname or split.username:
            raise ConfigurationError(
                "RemoteSandbox takes the URL of its server, such as https://sandbox.example/v1, "
                "without a user in it."
            )
        self.base_url, self.token, self.timeout = base_url, token, timeout
        self.max_file_bytes, self.workspace = max_file_bytes, workspace
        self._split = split

    def __repr__(self) -> str:
        return f"<RemoteSandbox {self._split.hostname}>"

    def for_chat(self, place: Place) -> RemoteSandbox:
        """Give the sandbox of the chat, whose workspace's name tells nobody whose it is."""
        named = json.dumps([place.agent_name, place.instance_id]).encode()
        return type(self)(
            self.base_url,
            token=self.token,
            timeout=self.timeout,
            max_file_bytes=self.max_file_bytes,
            workspace=hashlib.sha256(named).hexdigest(),
        )

    def read(self, path: str) -> bytes | None:
        """Give a file's content."""
        content = self._ask("read", path=file_inside(path)).get("content")
        if content is None:
            return None
        try:
            data = base64.b64decode(content, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise _unreadable() from None
        if len(data) > self.max_file_bytes:
            raise ToolError(f"{brief(path)} has more than {self.max_file_bytes} bytes.")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole."""
        if len(data) > self.max_file_bytes:
            raise ToolError(f"The file would have {len(data)} bytes, of {self.max_file_bytes}.")
        self._ask("write", path=file_inside(path), content=base64.b64encode(data).decode())

    def remove(self, path: str) -> bool:
        """Delete a file or an empty folder."""
        return self._ask("remove", path=file_inside(path)).get("removed") is True

    def entries(self) -> Iterator[Entry]:
        """Give the files."""
        listed = self._ask("list").get("files")
        if not isinstance(listed, list):
            raise _unreadable()
        for item in listed[:MAX_ENTRIES]:
            try:
                yield Entry(file_inside(item["path"]), int(item["size"]))
            except (ToolError, TypeError, KeyError, ValueError):
                raise _unreadable() from None

    def run(
        self, command: str, timeout: float = SECONDS, watch: Watch | None = None
    ) -> ShellResult:
        """Run a command there; the server ends it when its time is over."""
        line, limit = runnable(command), seconds(timeout)
        said = self._ask("run", limit + _GRACE_SECONDS, watch, command=line, timeout=limit)
        code = said.get("code")
        if not isinstance(code, int | None):
            raise _unreadable()
        out, err = (str(said.get(name) or "") for name in ("stdout", "stderr"))
        stopped = str(
            said.get("stopped") or ("" if code is not None else "the server said no code")
        )
        omitted = max(0, len(out) - MAX_OUTPUT_BYTES) + max(0, len(err) - MAX_OUTPUT_BYTES)
        return ShellResult(
            out[-MAX_OUTPUT_BYTES:], err[-MAX_OUTPUT_BYTES:], code, stopped[:200], omitted
        )

    def describe(self) -> str:
        """Say what the tools work in."""
        return "The workspace is on a machine for such work."

    def _ask(
        self, verb: str, within: float | None = None, watch: Watch | None = None, **given: Any
    ) -> dict[str, Any]:
        until = time.monotonic() + (within or self.timeout)
        body = json.dumps({"workspace": self.workspace, **given}).encode()
        connection = self._connection()
        try:
            connection.request(
                "POST", f"{self._split.path.rstrip('/')}/{verb}", body, self._headers()
            )
            assert connection.sock is not None
            connection.sock.settimeout(max(until - time.monotonic(), 0.1))
            answer = connection.getresponse()
            said = _read(answer, connection, until, watch)
        except (OSError, http.client.HTTPException) as error:
            raise ToolError(
                f"The sandbox's server can't be reached: {type(error).__name__}."
            ) from None
        finally:
            connection.close()
        return _answered(answer.status, said)

    def _connection(self) -> http.client.HTTPConnection:
        kind = (
            http.client.HTTPSConnection
            if self._split.scheme == "https"
            else http.client.HTTPConnection
        )
        assert self._split.hostname is not None
        return kind(self._split.hostname, self._split.port, timeout=_CONNECT_SECONDS)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        token = self.token() if callable(self.token) else self.token
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _read(
    answer: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    until: float,
    watch: Watch | None,
) -> bytes:
    """Read an answer that is neither endless nor slower than it may be."""
    chunks, size = [], 0
    while chunk := answer.read1(65536):
        size += len(chunk)
        if size > MAX_ANSWER or time.monotonic() > until:
            raise TimeoutError
        if watch is not None:
            watch()
        if connection.sock is not None:
            connection.sock.settimeout(max(until - time.monotonic(), 0.1))
        chunks.append(chunk)
    return b"".join(chunks)


def _answered(status: int, body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if status != http.client.OK:
        why = said.get("error") if isinstance(said, dict) else None
        raise ToolError(
            f"The sandbox's server refused ({status}){f': {str(why)[:300]}' if why else ''}."
        )
    if not isinstance(said, dict):
        raise _unreadable()
    return said


def _unreadable() -> ToolError:
    return ToolError("The sandbox's server gave an answer that means nothing here.")
