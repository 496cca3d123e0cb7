"""How many clients one server process streams to at once: `python -m tests.contrib.streaming_load`.

Every client has a turn of its own, and all of them run until the last client has seen its
first text. One more client never reads: its turn must end all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.contrib.scenarios import Site, User, said
from tests.contrib.servers import ROOT, served
from tests.durability import scratch

HELD_SECONDS = 5.0


@dataclass
class Reader:
    """A client that streams its turn, and what it saw when."""

    user: User
    began: float = 0.0
    first: float = 0.0
    text: float = 0.0
    stored: dict[int, str] = field(default_factory=dict)
    ended: str = ""
    pieces: int = 0

    async def read(self, site: Site, gate: str, speaking: asyncio.Semaphore) -> None:
        """Prompt, and read to the end."""
        self.began = time.monotonic()
        reader, writer = await asyncio.open_connection(*address(site))
        writer.write(request(self.user, f"drip {gate}"))
        async for kind, payload in events(reader):
            self.first = self.first or time.monotonic()
            if kind == "content":
                self.pieces += 1
                if not self.text:
                    self.text = time.monotonic()
                    speaking.release()
            elif kind in ("message", "tool_result"):
                self.stored[payload["position"]] = payload["content"]
            self.ended = kind
        writer.close()


def address(site: Site) -> tuple[str, int]:
    parts = urlsplit(site.url)
    return str(parts.hostname), int(parts.port or 80)


def request(user: User, text: str) -> bytes:
    """Give a prompt's request as it is sent."""
    body = json.dumps({"text": text}).encode()
    cookies = "; ".join(f"{name}={value}" for name, value in user.http.cookies.items())
    head = (
        f"POST {user.address('prompt')} HTTP/1.1",
        "Host: 127.0.0.1",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-CSRFToken: {user.token}",
        f"Cookie: {cookies}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, dict]]:
    """Read an event stream out of its chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200"), head
    data = b""
    while size := int(await reader.readline() or b"0", 16):
        data += (await reader.readexactly(size + 2))[:-2]
        *blocks, data = data.split(b"\n\n")
        for block in blocks:
            lines = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
            if b"data" in lines:
                yield lines[b"event"].decode(), json.loads(lines[b"data"])


async def run(site: Site, users: list[User]) -> list[Reader]:
    """Let all clients stream at once, measure while they do, and let them end."""
    gate, speaking = site.gate(), asyncio.Semaphore(0)
    before = memory(site.pid)
    readers = [Reader(user) for user in users[1:]]
    deaf = deaf_client(site, users[0], str(gate))
    tasks = [asyncio.create_task(r.read(site, str(gate), speaking)) for r in readers]
    for _ in readers:
        await until_spoken(speaking, tasks)
    await asyncio.sleep(HELD_SECONDS)
    grown, threads, connected = (
        memory(site.pid) - before,
        count(site.pid, "task"),
        connections(site),
    )
    gate.open()
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    line("memory of the server before", f"{before:.0f} MB")
    line("memory for each client", f"{grown / len(users):.2f} MB")
    line("threads", threads)
    line("connections to the database", connected)
    line("pieces of text", sum(r.pieces for r in readers))
    deaf.close()
    return readers


async def until_spoken(speaking: asyncio.Semaphore, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for another client's first text, or raise what a client met."""
    heard = asyncio.create_task(speaking.acquire())
    waiting = {heard, *(task for task in tasks if not task.done() or task.exception())}
    await asyncio.wait(waiting, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done() and (error := task.exception()):
            for other in tasks:
                other.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise error
    assert heard.done(), "a client has seen no text"


def deaf_client(site: Site, user: User, gate: str) -> socket.socket:
    """Prompt, and read nothing."""
    made = socket.create_connection(address(site))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    made.sendall(request(user, f"drip {gate}"))
    return made


def memory(pid: int) -> float:
    """Give the resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def count(pid: int, what: str) -> int:
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


def connections(site: Site) -> int:
    """Count the server's connections to the database: sockets, or descriptors of the file."""
    url = os.environ["NEXO_TEST_LOAD_DATABASE"]
    files = [os.readlink(file) for file in Path(f"/proc/{site.pid}/fd").iterdir()]
    if scratch.vendor(url) == "sqlite":
        name = Path(urlsplit(url).path).name
        return sum(file.endswith(name) for file in files)
    port = urlsplit(url).port or (5432 if scratch.vendor(url) == "postgresql" else 3306)
    found = 0
    # The table is the machine's; the last column that is read says whose a socket is.
    for row in Path(f"/proc/{site.pid}/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, _, _, _, _, inode, *_ = row.split()
        to = int(remote.partition(":")[2], 16)
        found += state == "01" and to == port and f"socket:[{inode}]" in files
    return found


def report(site: Site, users: list[User], readers: list[Reader]) -> bool:
    """Say what came of it; whether nothing was lost."""
    for name, waits in (
        ("first event", sorted(r.first - r.began for r in readers)),
        ("first text", sorted(r.text - r.began for r in readers)),
    ):
        line(f"{name}, median", f"{statistics.median(waits):.2f} s")
        line(f"{name}, 95 of 100", f"{waits[int(len(waits) * 0.95)]:.2f} s")
    lost = 0
    for reader in readers:
        kept = said(reader.user.history())
        lost += len(kept.items() - reader.stored.items()) + (reader.ended != "done")
    line("lost events", lost)
    deaf = users[0].settled()["turn"]
    line("the turn of the client that does not read", deaf["status"])
    return not lost and deaf["status"] == "done"


def line(name: str, value: object) -> None:
    print(f"{name:<44}{value}", flush=True)


def main() -> int:
    """Measure on a database of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--database", default="")
    parser.add_argument("--drip", type=float, default=0.5, help="seconds between two pieces")
    parser.add_argument("--pool", type=int, default=0, help="connections of Django's pool")
    given = parser.parse_args()
    with scratch.database(given.database or None) as url, tempfile.TemporaryDirectory() as folder:
        environment = {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.contrib.site.settings",
            "NEXO_TEST_FOLDER": folder,
            "NEXO_TEST_DRIP": str(given.drip),
            "NEXO_TEST_MAX_IN_FLIGHT": str(given.clients + 8),
            "NEXO_TEST_POOL": str(given.pool),
        }
        os.environ["NEXO_TEST_LOAD_DATABASE"] = url
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "-v0"],
            cwd=ROOT,
            env={**os.environ, **environment},
            check=True,
        )
        with served("uvicorn", Path(folder), **environment) as site:
            users = [site.user(f"reader{n}") for n in range(given.clients + 1)]
            line("clients", f"{given.clients} and one that does not read")
            readers = asyncio.run(run(site, users))
            return 0 if report(site, users, readers) else 1


if __name__ == "__main__":
    sys.exit(main())
