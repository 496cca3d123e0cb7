"""Connections to addresses that were looked at, and to no others.

A name is resolved once; all its addresses must be public, and a socket is opened to one of
them by number. Nothing resolves the name again, and no proxy is asked.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from nexo_django.exceptions import ToolError
from nexo_django.fetch.addresses import Address, Network, is_public, parsed, within
from nexo_django.fetch.clock import Clock
from nexo_django.fetch.hosts import Target

Resolve = Callable[[str], Iterable[Any]]
CONNECT_SECONDS = 10.0
# A name with more addresses is tried at these; all are looked at.
MAX_TRIED = 4


def addresses(host: str) -> list[str]:
    """Ask the system for a name's addresses."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


@dataclass(frozen=True)
class Guard:
    """Which addresses may be connected to, and how they are found."""

    resolve: Resolve = addresses
    private: Sequence[Network] = ()
    context: ssl.SSLContext | None = None

    def open(self, target: Target, clock: Clock) -> socket.socket:
        """Connect to a target, by TLS where it says so; raises ToolError."""
        vetted = self.vetted(target.host, clock)
        sock = _connected(vetted[:MAX_TRIED], target, clock)
        if target.scheme == "http":
            return sock
        try:
            return _secured(sock, target, self.context or _context(), clock)
        except BaseException:
            sock.close()
            raise

    def vetted(self, host: str, clock: Clock) -> list[Address]:
        """Give a host's addresses; raises ToolError when any of them is not public."""
        try:
            found = parsed([ip_address(host)])
        except ValueError:
            found = self._found(host, clock)
        if not all(is_public(it) or within(it, self.private) for it in found):
            raise ToolError(
                f"The host {host} has an address that is not public; fetch reads public hosts only."
            )
        return found

    def _found(self, host: str, clock: Clock) -> list[Address]:
        try:
            found = parsed(_in_time(lambda: list(self.resolve(host)), clock))
        except (OSError, ValueError):
            found = []
        if not found:
            raise ToolError(f"The host {host} has no address; look at how it is written.")
        return found


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    """Make it once, and late: it reads every certificate that the system trusts."""
    return ssl.create_default_context()


def _in_time(work: Callable[[], Any], clock: Clock) -> Any:
    """Give what `work` returns; a system's resolver can be left alone, but not stopped."""
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=run, name="nexo-resolve", daemon=True).start()
    while True:
        with suppress(queue.Empty):
            value, error = done.get(timeout=clock.tick())
            if error is not None:
                raise error
            return value


def _connected(vetted: Sequence[Address], target: Target, clock: Clock) -> socket.socket:
    for address in vetted:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with suppress(OSError):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                _connect(sock, address, target.port, clock)
            except BaseException:
                sock.close()
                raise
            return sock
    raise ToolError(f"The host {target.host} can't be reached on port {target.port}.")


def _connect(sock: socket.socket, address: Address, port: int, clock: Clock) -> None:
    sock.setblocking(False)
    with suppress(BlockingIOError):
        sock.connect((str(address), port))
    if not clock.wait(sock, write=True, until=time.monotonic() + CONNECT_SECONDS):
        raise TimeoutError
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, "not connected")


def _secured(
    sock: socket.socket, target: Target, context: ssl.SSLContext, clock: Clock
) -> ssl.SSLSocket:
    try:
        secure = context.wrap_socket(
            sock, server_hostname=target.host, do_handshake_on_connect=False
        )
        try:
            patiently(secure, secure.do_handshake, clock)
        except BaseException:
            # The socket that was wrapped is no longer the one that is open.
            secure.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise ToolError(
            f"The certificate of {target.host} is not valid: {error.verify_message}."
        ) from None
    except (OSError, ValueError):
        raise ToolError(f"No secure connection to {target.host} could be made.") from None
    return secure


def patiently(sock: socket.socket, work: Callable[[], Any], clock: Clock) -> Any:
    """Do something with a socket as often as it takes, waiting between."""
    while True:
        clock.tick()
        try:
            return work()
        except (ssl.SSLWantReadError, BlockingIOError):
            clock.wait(sock)
        except ssl.SSLWantWriteError:
            clock.wait(sock, write=True)
