"""Real servers for fetch: one that stands for the open internet, and ones that hold a secret.

On Linux all of 127.0.0.0/8 is this machine: 127.0.0.2 is what the tests let fetch read, and
127.0.0.1 and ::1, on the same port, are the inside that it must never touch.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

OUTSIDE, INSIDE, INSIDE_6 = "127.0.0.2", "127.0.0.1", "::1"
SECRET = "the-secret-of-the-inside"
OPEN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
Act = Callable[[socket.socket, str], Any]


class Server:
    """Answers each connection by `act(socket, head)` in a thread of its own."""

    def __init__(
        self, address: str, port: int, act: Act, context: ssl.SSLContext | None = None
    ) -> None:
        self.act, self.context = act, context
        self.heads: list[str] = []
        self.connections = 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.socket(family)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((address, port))
            self.listener.listen(64)
        except OSError:
            self.listener.close()
            raise
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(sock)
            # A client that is gone must not hold a thread for ever.
            sock.settimeout(60)
            if self.context is not None:
                sock = stack.enter_context(self.context.wrap_socket(sock, server_side=True))
            head = b""
            while b"\r\n\r\n" not in head:
                data = sock.recv(65536)
                if not data:
                    return
                head += data
            self.heads.append(head.decode("latin-1"))
            self.act(sock, self.heads[-1])


def answer(
    body: bytes | str = b"", *, status: str = "200 OK", kind: str = "text/plain", **headers: str
) -> Act:
    """Make an act that sends one answer."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}"]
    if kind:
        lines.append(f"Content-Type: {kind}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return lambda sock, _: sock.sendall(head + data)


def endless(start: bytes, piece: bytes, pause: float = 0.0) -> Act:
    """Make an act that sends for ever; it stops when the client goes."""

    def act(sock: socket.socket, head: str) -> None:
        wait = threading.Event()
        sock.sendall(start)
        while True:
            sock.sendall(piece)
            wait.wait(pause)

    return act


class Names:
    """A resolver: each name has its answers, one a lookup; the last one stays."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, list[Any]] = {"good.test": [[OUTSIDE]], **names}
        self.asked: list[str] = []

    def __call__(self, host: str) -> Iterable[Any]:
        self.asked.append(host)
        answers = self.names.get(host, [[OUTSIDE]] if host.endswith(".test") else [OSError()])
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, BaseException):
            raise found
        return found


class World:
    """The outside, with an act for each path, and the inside, which counts who came."""

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}
        self.outside, *self.inside = _bound(self._act)

    @property
    def port(self) -> int:
        return self.outside.port

    @property
    def touched(self) -> int:
        return sum(server.connections for server in self.inside)

    def close(self) -> None:
        for server in (self.outside, *self.inside):
            server.close()

    def _act(self, sock: socket.socket, head: str) -> None:
        path = head.split(" ")[1]
        self.acts.get(path, answer("nothing here", status="404 Not Found"))(sock, head)


def _bound(act: Act) -> list[Server]:
    """Find a port that is free on all addresses, and serve on it."""
    told = answer(SECRET)
    for _ in range(50):
        servers = [Server(OUTSIDE, 0, act)]
        try:
            servers.append(Server(INSIDE, servers[0].port, told))
            if has_ipv6():
                servers.append(Server(INSIDE_6, servers[0].port, told))
        except OSError:
            for server in servers:
                server.close()
            continue
        return servers
    raise RuntimeError("no port is free")


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind((INSIDE_6, 0))
        return True
    return False


@contextmanager
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


class Spy:
    """Sees every connection that the interpreter opens in a thread, at the system's door, and
    lets none leave this machine.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.thread: int | None = None
        # An audit hook can't be taken away again.
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect" and threading.get_ident() == self.thread:
            self.seen.append(args[1])
            if not args[1][0].startswith("127."):
                raise ConnectionRefusedError

    @contextmanager
    def __call__(self) -> Iterator[list[Any]]:
        self.seen, self.thread = [], threading.get_ident()
        try:
            yield self.seen
        finally:
            self.thread = None


spy = Spy()
