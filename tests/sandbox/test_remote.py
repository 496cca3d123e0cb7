"""The remote sandbox speaks its protocol, and no server makes it wait, follow or crash."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.sandbox.base import Place
from nexo_django.sandbox.remote import RemoteSandbox
from tests.sandbox.server import TOKEN, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def box(server: Server, **options: object) -> RemoteSandbox:
    made = RemoteSandbox(server.url, token=lambda: TOKEN, **options)  # type: ignore[arg-type]
    return made.for_chat(Place("Agent", "one"))


def test_files_and_commands(server: Server) -> None:
    remote = box(server)
    assert remote.read("a/b") is None
    remote.write("a/b", b"\x00\xff")
    assert remote.read("a/b") == b"\x00\xff"
    assert list(remote.entries()) == [("a/b", 2)]
    ended = remote.run("echo out; echo err >&2; exit 3")
    assert (ended.stdout, ended.stderr, ended.code) == ("out\n", "err\n", 3)
    assert remote.run("sleep 30", 0.5).stopped == "timeout"
    assert remote.remove("a/b") is True
    assert remote.remove("a/b") is False
    other = RemoteSandbox(server.url, token=TOKEN).for_chat(Place("Agent", "two"))
    assert list(other.entries()) == []


def test_what_the_server_refuses_is_said(server: Server) -> None:
    with pytest.raises(ToolError, match="who are you"):
        RemoteSandbox(server.url).read("a")
    remote = box(server)
    with pytest.raises(ToolError, match="leads out"):
        remote.read("../a")
    remote.write("a/b", b"x")
    with pytest.raises(ToolError, match="folder"):
        remote.write("a", b"x")


@pytest.mark.parametrize("mode", ["redirect", "slow", "endless", "nonsense", "drip"])
def test_a_server_gone_wrong_is_a_result(server: Server, mode: str) -> None:
    server.mode = mode
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        box(server, timeout=1).read("a")
    assert TOKEN not in str(raised.value)
    assert time.monotonic() - began < 30
    assert server.seen == ["/v1/read"]


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ToolError, match="can't be reached"):
        RemoteSandbox("http://127.0.0.1:1").read("a")


@pytest.mark.parametrize("url", ["", "ftp://x", "https://", "https://user:secret@host", None])
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RemoteSandbox(url)
    assert "secret" not in str(raised.value)
