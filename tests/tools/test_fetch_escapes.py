"""Nothing that was thought of gets fetch to touch the inside, or to go on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django.exceptions import ToolError
from nexo_django.fetch import Fetch
from nexo_django.fetch.addresses import is_public, parsed
from nexo_django.pipeline import Env
from tests.fetch.cases import HOSTS, URLS, Case, cases
from tests.fetch.servers import OUTSIDE, World, spy, world
from tests.tools.fetch_escapes import escaped, proxied


@pytest.fixture(scope="module")
def place() -> Iterator[World]:
    with world() as made, proxied(made):
        yield made


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: ascii(case.name))
def test_it_holds(case: Case, place: World) -> None:
    assert escaped(case, place) is None


PARTS = st.one_of(
    st.sampled_from([*HOSTS, *(url for url in URLS if len(url) < 100)]),
    st.sampled_from(
        [
            "http://",
            "https://",
            "@",
            ":",
            "/",
            "\\",
            "#",
            "?",
            "[",
            "]",
            "%",
            ".",
            "..",
            "localhost",
            "127.0.0.1",
            "\r",
            "\n",
            "\t",
        ]
    ),
    st.sampled_from(["{p}", "good.test", "user:pw@", "%2e", "\u3002", "0x", "0"]),
    st.text(max_size=8),
    st.integers(0, 2**34).map(str),
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda it: f"[{it}]"),
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(PARTS, max_size=7).map("".join),
    st.lists(PARTS, max_size=5).map(lambda parts: "http://" + "".join(parts)),
    PARTS.map(lambda part: f"http://{part}:{{p}}/"),
)


@settings(deadline=None, max_examples=400)
@given(
    TEXTS,
    st.lists(
        st.one_of(
            st.just(OUTSIDE),
            st.ip_addresses().map(str).filter(lambda it: not is_public(parsed([it])[0])),
        ),
        max_size=3,
    ),
)
def test_whatever_is_asked_for_only_a_vetted_address_is_connected_to(
    place: World, text: str, answers: list[str]
) -> None:
    tool = Fetch(
        allow=[f"*:{place.port}", "*"],
        allow_private=[f"{OUTSIDE}/32"],
        timeout=20,
        resolve=lambda host: answers,
    )
    touched = place.touched
    with spy() as seen, suppress(ToolError):
        tool.run({"url": text.replace("{p}", str(place.port))}, Env())
    assert place.touched == touched
    for address in seen:
        assert address[0] == OUTSIDE or is_public(parsed([address[0]])[0])
