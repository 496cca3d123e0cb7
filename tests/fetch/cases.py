# What looks like another character is the point here.
# ruff: noqa: RUF001, SIM905
"""What a model, a page or a name server may try, each with what it must not achieve."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fetch.servers import INSIDE, INSIDE_6, OUTSIDE, Act, answer, endless
from tests.fetch.servers import OPEN_HEAD as OPEN

MB = 1_000_000
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Case:
    """One attempt: a URL (`{p}` is the port), the acts of the outside, and what names mean."""

    name: str
    url: str
    acts: dict[str, Act] = field(default_factory=dict)
    names: dict[str, list[Any]] = field(default_factory=dict)
    allow: tuple[str, ...] = ("*:{p}", "*")
    # Whether it may end with a part of a page; otherwise it must be refused.
    gives: bool = False


HOSTS = """127.0.0.1 localhost LOCALHOST localhost. 2130706433 0x7f000001 0x7F000001 0x7f.1 0x7f.0.0.1
017700000001 0177.0.0.1 127.1 127.0.1 0 0.0.0.0 0x0 00000000 127.000.000.001 127.0.0.1. 127.0.0.1..
[::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:0:127.0.0.1] [::127.0.0.1]
[64:ff9b::127.0.0.1] [64:ff9b:1::127.0.0.1] [2002:7f00:1::] [2002:a9fe:a9fe::1] [::1]. [::1%25lo]
[2001:0:4136:e378:8000:63bf:80ff:fffe] [fe80::1] [fe80::1%25lo] [fe80::1%lo] [fc00::1] [fd00:ec2::254]
[ff02::1] [100::1] [2001:db8::1] [3fff::1] [fec0::1] [5f00::1] [2606:4700::5efe:7f00:1] [v1.x] [] [
169.254.169.254 2852039166 0xa9fea9fe 100.100.100.200 100.64.0.1 168.63.129.16 10.0.0.1 192.168.0.1
172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1
255.255.255.255 192.88.99.1 4294967295 4294967297 1.1.1.256 127.0.0.1.1 127.0.0.0x1 256.256.256.256
%31%32%37.0.0.1 127%2e0%2e0%2e1 １２７.０.０.１ ①②⑦.⓪.⓪.① 127。0。0。1 127．0．0．1 ０x7f.1 ⓛocalhost
127.0.0.1%00.good.test 127.0.0.1%23.good.test good.test%00.x -bad-.x a..b .good.test xn-- *
metadata.google.internal instance-data _ - inside.invalid""".split()

URLS = [
    "file:///etc/passwd",
    "file://good.test/etc/passwd",
    "ftp://good.test:{p}/",
    "gopher://127.0.0.1:{p}/_GET%20/",
    "dict://127.0.0.1:{p}/",
    "ldap://127.0.0.1:{p}/",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "jar:http://127.0.0.1:{p}!/",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "ws://127.0.0.1:{p}/",
    "//127.0.0.1:{p}/",
    "/etc/passwd",
    "http:127.0.0.1:{p}",
    "http:/127.0.0.1:{p}/",
    "http:///127.0.0.1:{p}/",
    "http:\\\\127.0.0.1:{p}/",
    "http://",
    "",
    " ",
    "http://user:pw@good.test:{p}/",
    "http://user@good.test:{p}/",
    "http://@good.test:{p}/",
    "http://good.test:{p}@127.0.0.1:{p}/",
    "http://127.0.0.1:{p}@good.test:{p}/",
    "http://good.test:{p}\\@127.0.0.1:{p}/",
    "http://127.0.0.1:{p}\\@good.test:{p}/",
    "http://good.test:{p}\\.127.0.0.1/",
    "http://127.0.0.1:{p}#@good.test:{p}/",
    "http://127.0.0.1:{p}?@good.test:{p}/",
    "http://127.0.0.1:{p};@good.test:{p}/",
    "http://good.test:{p}&@127.0.0.1:{p}/",
    "http://127.0.0.1:{p} @good.test:{p}/",
    "http://127.0.0.1:{p}\t@good.test:{p}/",
    "http://good.test:{p}\r\nHost: 127.0.0.1",
    "http://good.test:{p}/\r\nHost: 127.0.0.1\r\n\r\nGET /secret",
    "http://good.test:{p}/ HTTP/1.1\r\nX: y",
    "http://good.test:{p}/\x00",
    "http://good.test:{p}/\x7f",
    "http://good.test:{p}/\ud800",
    "ht\ntp://127.0.0.1:{p}/",
    "\nhttp://127.0.0.1:{p}/",
    "\x1fhttp://127.0.0.1:{p}/",
    "http://127.0.0.1\n:{p}/",
    "http://good.test:0/",
    "http://good.test:-1/",
    "http://good.test:65536/",
    "http://good.test:99999999999/",
    "http://good.test:{p}:80/",
    "http://good.test:８０/",
    "http://good.test:/x:{p}/",
    "http://good.test: 80/",
    "http://good.test:+80/",
    "http://good.test:0x50/",
    "http://good.test:22/",
    "http://[::1]good.test:{p}/",
    "http://good.test[::1]:{p}/",
    "http://[good.test]:{p}/",
    "http://[::1:{p}/",
    "http://::1:{p}/",
    "http://[::ffff:127.0.0.1%25x]:{p}/",
    "http://good.test:{p}/" + "a" * MB,
    "http://" + "a" * MB + ".test:{p}/",
    "http://" + "a." * 5000 + "test:{p}/",
    "http://" + "ä" * 5000 + ".test:{p}/",
    "http://" + "ä" * 200 + ".test:{p}/",
    "http://" + "\u0661" * 250 + ":{p}/",
]

# What a name may lead to beside the one address that the tests let through.
ADDRESSES = [
    INSIDE,
    INSIDE_6,
    "0.0.0.0",
    "::",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "169.254.169.254",
    "10.0.0.1",
    "100.64.0.1",
    "fe80::1%lo",
    "fd00:ec2::254",
    "224.0.0.1",
    "255.255.255.255",
    "not an address",
    "",
    None,
    2130706433,
    "127.0.0.1\x00",
    "localhost",
]

LOCATIONS = [
    "http://127.0.0.1:{p}/secret",
    "http://localhost:{p}/secret",
    "http://[::1]:{p}/secret",
    "http://0x7f.1:{p}/",
    "http://2130706433:{p}/",
    "//127.0.0.1:{p}/secret",
    "http:127.0.0.1:{p}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{p}/",
    "http://user:pw@good.test:{p}/ok",
    "http://good.test:{p}\\@127.0.0.1:{p}/",
    "http://[::1",
    "http://inside.test:{p}/secret",
    "https://inside.test:{p}/secret",
    "\thttp://127.0.0.1:{p}/",
    "http://127.0.0.1:{p}\t@good.test:{p}/",
    "/loop",
    "data:text/plain,hello",
    "http://good.test:{p}/" + "a" * 20_000,
    "?" * 30_000,
]


def cases() -> Iterator[Case]:
    """Give every attempt."""
    for host in HOSTS:
        yield Case(f"host {host}", f"http://{host}:{{p}}/secret", names=_inside())
        yield Case(f"host {host}, usual port", f"https://{host}/", names=_inside())
    for url in URLS:
        yield Case(f"url {url[:60]!r}", url)
    for address in ADDRESSES:
        shown = ascii(address)
        yield Case(f"name to {shown}", "http://x.test:{p}/", names={"x.test": [[address]]})
        both = {"x.test": [[OUTSIDE, address]]}
        yield Case(f"name to a good one and {shown}", "http://x.test:{p}/", names=both)
    for number, location in enumerate(LOCATIONS):
        path = "/loop" if location == "/loop" else "/there"
        acts = {path: _redirect(location), "/ok": answer("fine")}
        # Read as browsers read it, as a path of the same host.
        same = location.startswith("http:1")
        name = f"redirect {number} to {location[:40]!r}"
        yield Case(name, f"http://good.test:{{p}}{path}", acts, _inside(), gives=same)
    yield from _rebinding()
    yield from _lists()
    yield from _floods()


def _inside() -> dict[str, list[Any]]:
    names = ("localhost", "inside.test", "inside.invalid", "instance-data", "_", "-", "*")
    return {name: [[INSIDE]] for name in (*names, "metadata.google.internal")}


def _redirect(location: str) -> Act:
    def act(sock: Any, head: str) -> None:
        port = head.partition("Host: ")[2].split("\r\n")[0].rpartition(":")[2]
        answer(status="302 Found", Location=location.replace("{p}", port))(sock, head)

    return act


def _compressed(window: int, coding: str) -> Act:
    """Answer with 100 MB of nothing, made without ever being held whole."""
    made = zlib.compressobj(wbits=window)
    piece = bytes(MB)
    body = b"".join(made.compress(piece) for _ in range(100)) + made.flush()
    return answer(body, Content_Encoding=coding)


def _rebinding() -> Iterator[Case]:
    flips: dict[str, list[Any]] = {"x.test": [[OUTSIDE], [INSIDE]]}
    ok = {"/": answer("fine")}
    yield Case("rebinding between look and use", "http://x.test:{p}/", ok, flips, gives=True)
    flips = {"x.test": [[OUTSIDE], [INSIDE]]}
    acts = {"/": _redirect("http://x.test:{p}/secret")}
    yield Case("rebinding at a redirect", "http://x.test:{p}/", acts, flips)
    yield Case("a name without addresses", "http://x.test:{p}/", names={"x.test": [[]]})
    failing = {"x.test": [OSError("down")]}
    yield Case("a name server that fails", "http://x.test:{p}/", names=failing)
    many = {"x.test": [[f"127.0.0.{n}" for n in range(2, 250)]]}
    yield Case("hundreds of addresses", "http://x.test:{p}/", names=many)


def _lists() -> Iterator[Case]:
    ok = {"/": answer("fine"), "/there": _redirect("http://other.test:{p}/")}
    for allow, url in (
        ((), "http://good.test:{p}/"),
        (("apple.test:{p}",), "http://аpple.test:{p}/"),
        (("apple.test:{p}",), "http://xn--pple-43d.test:{p}/"),
        (("good.test:{p}",), "http://good.test.evil.test:{p}/"),
        (("good.test:{p}",), "http://sub.good.test:{p}/"),
        (("*.good.test:{p}",), "http://evilgood.test:{p}/"),
        (("*.good.test:{p}",), "http://good.test:{p}/"),
        (("*.good.test:{p}",), "http://x.good.test.evil.test:{p}/"),
        (("good.test",), "http://good.test:{p}/"),
        (("https://good.test:{p}",), "http://good.test:{p}/"),
        (("good.test:{p}",), "http://127.0.0.2:{p}/"),
        (("good.test:{p}",), "http://good.test:{p}/there"),
    ):
        yield Case(f"list {list(allow)} against {url}", url, ok, allow=allow)


def _floods() -> Iterator[Case]:
    flood = b"x" * 65536
    floods: dict[str, tuple[Act, bool]] = {
        "an endless body": (endless(OPEN, flood), True),
        "an endless body in chunks": (endless(CHUNKED, b"10000\r\n" + flood + b"\r\n"), True),
        "an endless body in chunks of one": (endless(CHUNKED, b"1\r\nx\r\n" * 5000), True),
        "endless extensions of chunks": (
            endless(CHUNKED, b"1;" + b"e" * 9000 + b"\r\nx\r\n"),
            True,
        ),
        "an endless chunk extension": (endless(CHUNKED + b"1;", flood), False),
        "endless trailers": (endless(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), False),
        "a drip": (endless(OPEN, b"x", 0.05), False),
        "a drip of headers": (endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.05), False),
        "silence": (endless(b"", b"", 0.2), False),
        "silence after the head": (endless(OPEN, b"", 0.2), False),
        "an endless status line": (endless(b"HTTP/1.1 200 ", flood), False),
        "an endless header": (endless(b"HTTP/1.1 200 OK\r\nX: ", flood), False),
        "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000), False),
        "endless interim answers": (endless(b"", b"HTTP/1.1 103 Early\r\n\r\n" * 500), False),
        "no HTTP": (endless(b"SSH-2.0-OpenSSH\r\n", b"", 0.2), False),
        "endless blank lines": (endless(b"", b"\r\n" * 5000), False),
        "a gzip bomb": (_compressed(31, "gzip"), True),
        "a deflate bomb": (_compressed(15, "deflate"), True),
        "a gzip bomb in a gzip": (_compressed(31, "gzip, gzip"), False),
        "a gzip bomb of many members": (
            endless(OPEN[:-2] + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"") * 2000),
            False,
        ),
        "another compression": (answer(b"xx", Content_Encoding="br"), False),
        "broken gzip": (answer(b"\x1f\x8bxxxxxxxxxx", Content_Encoding="gzip"), False),
        "two lengths": (
            lambda sock, _: sock.sendall(
                OPEN[:-2] + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"
            ),
            False,
        ),
        "a length below zero": (
            lambda sock, _: sock.sendall(OPEN[:-2] + b"Content-Length: -1\r\n\r\nxx"),
            False,
        ),
        "a body that breaks off": (
            lambda sock, _: sock.sendall(OPEN[:-2] + b"Content-Length: 99\r\n\r\nxx"),
            False,
        ),
        "nothing": (lambda sock, _: None, False),
        "a switch of protocols": (
            lambda sock, _: sock.sendall(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n" + flood),
            False,
        ),
        "unclosed markup": (answer("<a href='" * 200_000, kind="text/html"), True),
        "unclosed comments": (answer("<!--" * 400_000, kind="text/html"), True),
        "unclosed scripts": (answer("<script>x</scrip" * 100_000, kind="text/html"), True),
        "a million open tags": (answer("<div><ul><li>" * 150_000, kind="text/html"), True),
        "links that grow": (answer("<a href=x>y</a>" * 130_000, kind="text/html"), True),
        "references": (
            answer("&#" + "9" * 500_000 + ";" + "&amp" * 300_000, kind="text/html"),
            True,
        ),
        "a slow charset": (answer("x" * MB, kind="text/plain; charset=idna"), True),
        "a charset that is none": (answer("x" * MB, kind="text/plain; charset=zlib"), True),
    }
    for name, (act, gives) in floods.items():
        yield Case(name, "http://good.test:{p}/flood", {"/flood": act}, gives=gives)
