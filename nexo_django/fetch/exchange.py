"""One request and its answer over a socket, every part of the answer bounded."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass, field
from functools import partial

import h11

from nexo_django.exceptions import ToolError
from nexo_django.fetch.clock import Clock
from nexo_django.fetch.connection import patiently
from nexo_django.fetch.hosts import Target

MAX_HEADER = 65_536
# What the framing of a body may take beside it.
MAX_FRAMING = 262_144
PIECE = 65_536
ACCEPT = "text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.5"


@dataclass
class Answer:
    """What a server answered; `cut` says that it had more to say."""

    target: Target
    status: int
    reason: str
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False

    @property
    def location(self) -> str | None:
        """Where a redirect leads, None for any other answer."""
        return self.headers.get("location") if self.status in (301, 302, 303, 307, 308) else None


@dataclass
class Exchange:
    """Sends a request for a target and reads what comes, at most `max_bytes` of a body."""

    sock: socket.socket
    target: Target
    clock: Clock
    agent: str
    max_bytes: int
    _http: h11.Connection = field(init=False)
    _read: int = 0

    def __post_init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER)

    def run(self) -> Answer:
        """Give the answer, or raise ToolError; the body of a redirect is not read."""
        try:
            self._send()
            answer = self._head()
            if answer.location is None:
                self._body(answer)
        except (h11.RemoteProtocolError, zlib.error):
            raise ToolError(
                f"The server {self.target.host} sent an answer that can't be read."
            ) from None
        except OSError:
            raise ToolError(f"The server {self.target.host} broke the connection off.") from None
        return answer

    def _send(self) -> None:
        headers = {
            "Host": self.target.netloc,
            "User-Agent": self.agent,
            "Accept": ACCEPT,
            "Accept-Encoding": "gzip, deflate",
            "Connection": "close",
        }
        request = h11.Request(method="GET", target=self.target.path, headers=list(headers.items()))
        data = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        while data:
            data = data[patiently(self.sock, partial(self.sock.send, data), self.clock) :]

    def _head(self) -> Answer:
        while True:
            event = self._event(MAX_HEADER)
            if isinstance(event, h11.Response):
                break
            if not isinstance(event, h11.InformationalResponse):
                raise ToolError(f"The server {self.target.host} gave no answer.")
        headers: dict[str, str] = {}
        for name, value in event.headers:
            headers.setdefault(_text(name), _text(value))
        return Answer(self.target, event.status_code, _text(event.reason), headers)

    def _body(self, answer: Answer) -> None:
        inflate = Inflater.of(answer.headers.get("content-encoding", ""))
        most = self._read + self.max_bytes + MAX_FRAMING
        pieces: list[bytes] = []
        left = self.max_bytes
        while isinstance(event := self._event(most), h11.Data):
            piece = inflate(bytes(event.data), left + 1)
            pieces.append(piece[:left])
            if len(piece) > left:
                answer.cut = True
                break
            left -= len(piece)
        answer.body = b"".join(pieces)

    def _event(self, most: int) -> object:
        """Give the next event of the answer, having read at most so many bytes in all."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = patiently(self.sock, lambda: self.sock.recv(PIECE), self.clock)
            self._read += len(data)
            if self._read > most + PIECE:
                raise ToolError(f"The server {self.target.host} sent more than anybody reads.")
            self._http.receive_data(data)
        return event


class Inflater:
    """Undoes a content coding, never giving more than it is asked for."""

    def __init__(self, windows: tuple[int, ...]) -> None:
        # Several windows: "deflate" is sent with a header and without one.
        self._windows = list(windows)
        self._made = zlib.decompressobj(self._windows.pop(0)) if windows else None
        self._begun = False

    @classmethod
    def of(cls, coding: str) -> Inflater:
        """Give the one for a Content-Encoding, or raise ToolError."""
        known = {
            "": (),
            "identity": (),
            "gzip": (31,),
            "x-gzip": (31,),
            "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS),
        }
        windows = known.get(coding.strip().lower())
        if windows is None:
            raise ToolError("The server compressed its answer in a way that was not asked for.")
        return cls(windows)

    def __call__(self, data: bytes, most: int) -> bytes:
        """Give what comes of more data, at most so many bytes."""
        if self._made is None:
            return data[:most]
        out = b""
        while data and len(out) < most:
            try:
                out += self._made.decompress(data, most - len(out))
            except zlib.error:
                if self._begun or not self._windows:
                    raise
                self._made = zlib.decompressobj(self._windows.pop())
                continue
            self._begun = True
            data = self._made.unconsumed_tail or self._made.unused_data
            if self._made.eof and data:
                # Further members of a gzip file; what is no member is left out, as gzip does.
                if not data.startswith(b"\x1f\x8b"):
                    break
                self._made = zlib.decompressobj(31)
        return out


def _text(value: bytes) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return bytes(value).decode("latin-1")
