"""URLs and allow lists are read strictly, and alike."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.fetch import check
from nexo_django.fetch.addresses import is_public, parsed
from nexo_django.fetch.hosts import PORTS, Target, allowed, entries, target


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("https://docs.example.com", "https://docs.example.com/"),
        ("HTTPS://Docs.EXAMPLE.com.:443/A?b=C#d", "https://docs.example.com/A?b=C"),
        ("http://example.com:443", "http://example.com:443/"),
        ("http://example.com?q=1", "http://example.com/?q=1"),
        ("http://a_b.example.com/%7Ex/ü", "http://a_b.example.com/%7Ex/%C3%BC"),
        ("http://faß.example/", "http://xn--fa-hia.example/"),
        ("http://93.184.216.34/", "http://93.184.216.34/"),
        ("http://[2606:2800:0220::0001]:8080/", "http://[2606:2800:220::1]:8080/"),
    ],
)
def test_a_url_is_taken_apart(url: str, whole: str) -> None:
    assert target(url).url == whole
    assert target(whole) == target(url)


@given(st.text(max_size=80))
def test_what_is_taken_apart_is_plain(text: str) -> None:
    try:
        found = target(f"http://{text}")
    except ToolError:
        return
    assert found.host.isascii()
    assert not set(found.host) & set(" \r\n\t@/\\?#%")
    assert found.path.startswith("/")
    assert found.path.isascii()
    assert not set(found.path) & set(" \r\n\t\\")
    assert target(found.url) == found


@pytest.mark.parametrize(
    ("entry", "fits", "fits_not"),
    [
        ("a.example", ["http://a.example", "https://A.example/x"], ["http://b.a.example"]),
        ("*.a.example", ["http://b.a.example", "http://c.b.a.example"], ["http://a.example"]),
        ("https://a.example", ["https://a.example"], ["http://a.example"]),
        (
            "a.example:8443",
            ["https://a.example:8443"],
            ["https://a.example", "http://a.example:80"],
        ),
        ("*", ["http://x.example", "https://1.1.1.1"], ["http://x.example:8080"]),
        ("https://*:8443", ["https://x.example:8443"], ["https://x.example"]),
        ("bücher.example", ["http://xn--bcher-kva.example"], ["http://bucher.example"]),
        ("1.1.1.1", ["http://1.1.1.1"], ["http://1.1.1.2"]),
        ("[2606:4700::0001]", ["http://[2606:4700::1]"], ["http://[2606:4700::2]"]),
    ],
)
def test_an_entry_names_what_it_says(entry: str, fits: list[str], fits_not: list[str]) -> None:
    listed = entries([entry], "x")
    assert all(allowed(target(url), listed) for url in fits)
    assert not any(allowed(target(url), listed) for url in fits_not)


WRONG: list[Any] = ["", " ", "*.com", "*.*", "*x.com", "a.com/x", "ftp://a.com", "a.com:0", "127.1"]
WRONG += [
    "a.com:99999",
    "http://",
    "u@a.com",
    "a b",
    "::1",
    "[::1",
    "0x7f.1",
    "a..b",
    None,
    3,
    b"x",
]


@pytest.mark.parametrize("entry", WRONG)
def test_an_entry_that_means_nothing_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"A\.fetch_allow holds"):
        check("A", [entry])


@pytest.mark.parametrize("allow", ["a.example", {"a.example": 1}, 3, b"x"])
def test_a_list_that_is_none_is_refused(allow: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a list of hosts"):
        check("A", allow)


def test_an_empty_list_names_nothing() -> None:
    check("A", [])
    assert not allowed(Target("http", "a.example", PORTS["http"], "/"), entries([], "x"))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_is_public_that_python_knows_as_special(address: Any) -> None:
    special = address.is_private or address.is_multicast or address.is_reserved
    if special or address.is_loopback or address.is_link_local or address.is_unspecified:
        # Anycast addresses of the protocols' own, which newer releases know as reachable.
        assert not is_public(address)


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1"])
def test_public_addresses_are(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
    assert parsed([text, text]) == [ipaddress.ip_address(text)]
