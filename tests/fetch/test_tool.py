"""Fetch reads what an agent allows, and says what it read."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from nexo_django.exceptions import ConfigurationError, ToolError, TurnCancelled
from nexo_django.fetch import Fetch
from nexo_django.pipeline import Env
from nexo_django.tools.results import ToolResult
from tests.fetch.servers import (
    OPEN_HEAD,
    OUTSIDE,
    Names,
    Server,
    World,
    answer,
    endless,
    spy,
    world,
)


@pytest.fixture(scope="module")
def place() -> Iterator[World]:
    with world() as made:
        yield made


def fetched(
    place: World, path: str = "/", *, host: str = "good.test", **options: Any
) -> ToolResult:
    options = {"allow": [f"*:{place.port}"], "resolve": Names(), "timeout": 60, **options}
    tool = Fetch(allow_private=[f"{OUTSIDE}/32"], **options)
    return tool.run({"url": f"http://{host}:{place.port}{path}"}, Env())


def test_a_page_is_told_with_its_url_and_status(place: World) -> None:
    page = "<title>Hi &amp; bye</title><h1>Top</h1><p>One <a href='/two'>two</a>.</p><script>no</script>"
    place.acts = {"/": answer(page, kind="text/html; charset=utf-8")}
    result = fetched(place)
    assert not result.is_error
    assert result.text == (
        f"http://good.test:{place.port}/ answered 200 OK (text/html)\nTitle: Hi & bye\n\n"
        f"# Top\n\nOne [two](http://good.test:{place.port}/two)."
    )


def test_the_request_is_that_of_its_name_and_asks_once(place: World) -> None:
    names = Names()
    place.acts = {"/a%20b?q=%C3%A9": answer("fine")}
    assert "fine" in fetched(place, "/a%20b?q=é#part", host="GOOD.test.", resolve=names).text
    head = place.outside.heads[-1]
    assert head.startswith("GET /a%20b?q=%C3%A9 HTTP/1.1\r\n")
    assert f"\r\nHost: good.test:{place.port}\r\n" in head
    assert "authorization" not in head.lower()
    assert "cookie" not in head.lower()
    assert names.asked == ["good.test"]


def test_names_in_other_scripts_are_looked_up_in_ascii(place: World) -> None:
    names = Names()
    place.acts = {"/": answer("fine")}
    assert "fine" in fetched(place, host="bücher.test", resolve=names).text
    assert names.asked == ["xn--bcher-kva.test"]


def test_a_redirect_is_followed_where_it_may_be(place: World) -> None:
    place.acts = {
        "/old": answer(status="301 Moved", Location="/new?x=1"),
        "/new?x=1": answer(status="302 Found", Location=f"http://two.test:{place.port}/end"),
        "/end": answer("the end"),
    }
    names = Names()
    result = fetched(place, "/old", resolve=names)
    assert (
        result.text == f"http://two.test:{place.port}/end answered 200 OK (text/plain)\n\nthe end"
    )
    assert names.asked == ["good.test", "good.test", "two.test"]
    with pytest.raises(ToolError, match=r"two.test:.* is not on this agent's list of hosts"):
        fetched(place, "/old", allow=[f"good.test:{place.port}"])
    with pytest.raises(ToolError, match="redirects more than 1 times"):
        fetched(place, "/old", max_redirects=1)


def test_an_error_of_the_server_is_told_as_one(place: World) -> None:
    place.acts = {"/": answer("no such page", status="404 Not Found")}
    result = fetched(place)
    assert result.is_error
    assert "answered 404 Not Found" in result.text
    assert "no such page" in result.text


def test_what_is_too_long_is_cut_and_says_so(place: World) -> None:
    place.acts = {"/": answer("é" * 5000), "/whole": answer("x" * 1000)}
    result = fetched(place, max_bytes=1001)
    assert "[Only the first 1001 bytes of the page were read.]" in result.text
    assert result.text.count("é") == 500
    assert "Only the first" not in fetched(place, "/whole", max_bytes=1000).text


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw", "two members", "identity"])
def test_compressed_pages_are_read(place: World, coding: str) -> None:
    text = b"".join(b"line %d\n" % number for number in range(20_000))
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    data = {
        "gzip": gzip.compress(text),
        "deflate": zlib.compress(text),
        "raw": raw.compress(text) + raw.flush(),
        "two members": gzip.compress(text[:1000]) + gzip.compress(text[1000:]),
        "identity": text,
    }[coding]
    named = {"raw": "deflate", "two members": "gzip"}.get(coding, coding)
    place.acts = {"/": answer(data, Content_Encoding=named)}
    assert fetched(place).text.endswith(text.decode())


def test_a_bomb_is_cut_like_any_long_page(place: World) -> None:
    place.acts = {"/": answer(gzip.compress(b"x" * 20_000_000), Content_Encoding="gzip")}
    result = fetched(place)
    assert result.text.endswith("[Only the first 2000000 bytes of the page were read.]")
    assert result.text.count("x") > 1_999_000


def test_a_cancelled_turn_is_seen_while_a_page_drips(place: World) -> None:
    began = threading.Event()

    def drip(sock: Any, head: str) -> None:
        began.set()
        endless(OPEN_HEAD, b"x", 0.02)(sock, head)

    class Recorder:
        def checkpoint(self, *, now: bool = False) -> None:
            if began.is_set():
                raise TurnCancelled

    place.acts = {"/": drip}
    env = Env()
    env.messages.recorder = Recorder()
    tool = Fetch(
        allow=[f"*:{place.port}"],
        allow_private=[f"{OUTSIDE}/32"],
        resolve=Names(),
        timeout=200,
    )
    start = time.monotonic()
    with pytest.raises(TurnCancelled):
        tool.run({"url": f"http://good.test:{place.port}/"}, env)
    assert time.monotonic() - start < 100


def test_a_name_server_that_never_answers_is_left() -> None:
    waits = threading.Event()
    tool = Fetch(allow=["*"], resolve=lambda host: waits.wait(60) and [], timeout=0.3)
    with pytest.raises(ToolError, match=r"longer than 0\.3 seconds"):
        tool.run({"url": "http://slow.test/"}, Env())
    waits.set()


def test_the_next_address_is_tried_when_one_does_not_answer(place: World) -> None:
    place.acts = {"/": answer("fine")}
    names = Names(**{"good.test": [["127.0.0.3", OUTSIDE]]})
    tool = Fetch(
        allow=[f"*:{place.port}"],
        allow_private=["127.0.0.3/32", f"{OUTSIDE}/32"],
        resolve=names,
    )
    with spy() as seen:
        assert "fine" in tool.run({"url": f"http://good.test:{place.port}/"}, Env()).text
    assert [address[0] for address in seen] == ["127.0.0.3", OUTSIDE]


def test_without_a_list_nothing_is_read(place: World) -> None:
    agent = SimpleNamespace(fetch_allow=[])
    # The list of the tool is for pipelines that have no agent.
    tool = Fetch(allow=["*"], resolve=Names())
    with pytest.raises(ToolError, match="not on this agent's list"):
        tool.run({"url": "http://good.test/"}, Env(agent=agent))
    with pytest.raises(ToolError, match="not on this agent's list"):
        Fetch().run({"url": "http://good.test/"}, Env())


@pytest.mark.parametrize(
    "options",
    [
        {"allow": "good.test"},
        {"allow": [""]},
        {"allow_private": True},
        {"allow_private": "127.0.0.1/8"},
        {"allow_private": ["127.0.0.1/8"]},
        {"timeout": 0},
        {"max_bytes": -1},
        {"timeout": "3"},
    ],
)
def test_options_that_can_not_be_right_are_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Fetch(**options)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def secure(authority: trustme.CA, *names: str) -> Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    asked: list[str | None] = []
    context.sni_callback = lambda sock, name, _: asked.append(name)
    server = Server(OUTSIDE, 0, answer("over TLS" * 20_000), context)
    server.asked = asked  # type: ignore[attr-defined]
    return server


def read_securely(server: Server, host: str, context: ssl.SSLContext | None) -> ToolResult:
    tool = Fetch(
        allow=[f"https://*:{server.port}"],
        allow_private=[f"{OUTSIDE}/32"],
        resolve=Names(),
        context=context,
        timeout=60,
    )
    return tool.run({"url": f"https://{host}:{server.port}/"}, Env())


def test_tls_is_for_the_name_not_for_the_address(authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = secure(authority, "good.test", OUTSIDE)
    try:
        assert read_securely(server, "good.test", context).text.count("over TLS") == 20_000
        assert server.asked == ["good.test"]  # type: ignore[attr-defined]
        assert f"Host: good.test:{server.port}" in server.heads[-1]
        assert "over TLS" in read_securely(server, OUTSIDE, context).text
        with pytest.raises(ToolError, match=r"certificate of other.test is not valid"):
            read_securely(server, "other.test", context)
        with pytest.raises(ToolError, match=r"certificate of good.test is not valid"):
            read_securely(server, "good.test", None)
    finally:
        server.close()


def test_a_server_without_tls_is_said(place: World) -> None:
    place.acts = {}
    tool = Fetch(
        allow=[f"*:{place.port}"],
        allow_private=[f"{OUTSIDE}/32"],
        resolve=Names(),
        timeout=2,
    )
    with pytest.raises(ToolError):
        tool.run({"url": f"https://good.test:{place.port}/"}, Env())
