"""Try to get fetch out of its bounds: `python -m tests.tools.fetch_escapes` prints what was tried.

An attempt escapes when anything but the one address that it may read is connected to, when
something inside is touched or told, when it takes longer or more memory than it may, or when
it ends in anything but a result or a ToolError.
"""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from nexo_django.exceptions import ToolError
from nexo_django.fetch import Fetch
from nexo_django.pipeline import Env
from nexo_django.truncation import truncate
from tests.fetch.cases import Case, cases
from tests.fetch.servers import OUTSIDE, SECRET, Names, World, spy, world

SECONDS = 2.0
# What a loaded machine may take beyond what was asked for.
GRACE = 20.0
MAX_BYTES = 2_000_000
MEMORY = 40_000_000
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def escaped(case: Case, place: World) -> str | None:
    """Try a case; say how it escaped, None when it did not."""
    port = str(place.port)
    place.acts = dict(case.acts)
    tool = Fetch(
        allow_private=[f"{OUTSIDE}/32"],
        timeout=SECONDS,
        max_bytes=MAX_BYTES,
        resolve=Names(**case.names),
    )
    agent = SimpleNamespace(fetch_allow=[entry.replace("{p}", port) for entry in case.allow])
    touched, began, refused, text = place.touched, time.monotonic(), False, ""
    tracemalloc.start()
    with spy() as seen:
        try:
            text = tool.run({"url": case.url.replace("{p}", port)}, Env(agent=agent)).text
        except ToolError as error:
            refused, text = True, str(error)
        except BaseException as error:
            return f"it raised {type(error).__name__}: {error}"
        finally:
            took, (_, peak) = time.monotonic() - began, tracemalloc.get_traced_memory()
            tracemalloc.stop()
    truncate(text)
    if other := [address for address in seen if address[0] != OUTSIDE]:
        return f"it connected to {other}"
    if place.touched != touched or SECRET in text:
        return "it touched the inside"
    if took > SECONDS + GRACE:
        return f"it took {took:.1f} s"
    if peak > MEMORY:
        return f"it took {peak} bytes of memory"
    if len(text) > 2 * MAX_BYTES or (refused and len(text) > 1000):
        return f"it told {len(text)} characters"
    return None if refused or case.gives else f"it was not refused: {text[:100]}"


@contextmanager
def proxied(place: World) -> Iterator[None]:
    """Have the environment name the inside as the proxy of everything."""
    before = {name: os.environ.get(name) for name in PROXIES}
    os.environ.update(dict.fromkeys(PROXIES, f"http://127.0.0.1:{place.port}"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def main() -> int:
    """Try everything, and print it."""
    tried = out = 0
    with world() as place, proxied(place):
        for case in cases():
            tried += 1
            how = escaped(case, place)
            if how is not None:
                out += 1
                print(f"ESCAPED  {case.name}: {how}")
            elif "-v" in sys.argv:
                print(f"held     {case.name}")
    print(f"fetch: {tried} tried, {out} escaped")
    return 1 if out else 0


if __name__ == "__main__":
    sys.exit(main())
