"""Nothing gets out of a sandbox in any way that it claims to hold."""

from __future__ import annotations

import pytest

from tests.sandbox.escapes import TRIES, attempt
from tests.sandbox.support import MAKERS, bubblewrap_problem


@pytest.mark.parametrize("what", TRIES)
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_gets_out(name: str, what: str) -> None:
    if name == "bubblewrap" and (problem := bubblewrap_problem()):
        pytest.skip(problem)
    got = attempt(name, what)
    if isinstance(got, str):
        pytest.skip(f"{name}, {what}: {got}")
    assert got
    assert not any(got)
