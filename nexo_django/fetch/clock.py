"""The time that a fetch may take, all its redirects together."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass, field

from nexo_django.exceptions import ToolError
from nexo_django.pipeline import Env

# How long a cancelled turn may wait for a socket.
TICK = 0.5


@dataclass
class Clock:
    """Waits for sockets, and sees between two looks whether the turn or the time is over."""

    seconds: float
    env: Env | None = None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    def tick(self) -> float:
        """Give how long to wait for one look; raises when there is no time left for any."""
        if self.env is not None:
            self.env.checkpoint()
        left = self._end - time.monotonic()
        if left <= 0:
            raise ToolError(f"The server took longer than {self.seconds:g} seconds; it was left.")
        return min(left, TICK)

    def wait(self, sock: socket.socket, *, write: bool = False, until: float | None = None) -> bool:
        """Wait until a socket can be read or written; False when `until` came first."""
        poll = select.poll()
        poll.register(sock, select.POLLOUT if write else select.POLLIN)
        while not poll.poll(self.tick() * 1000):
            if until is not None and time.monotonic() > until:
                return False
        return True
