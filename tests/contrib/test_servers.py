"""uvicorn and gunicorn, as processes of their own: the same scenarios pass on each."""

from __future__ import annotations

import pytest

from tests.contrib.scenarios import SCENARIOS
from tests.contrib.servers import COMMANDS, served


@pytest.mark.parametrize("kind", COMMANDS)
def test_scenarios(kind, tmp_path, transactional_db):
    with served(kind, tmp_path) as site:
        try:
            for scenario in SCENARIOS:
                scenario(site)
        except BaseException as error:
            error.add_note(f"in {scenario.__name__}")
            error.add_note((tmp_path / f"{kind}.log").read_text()[-6000:])
            raise
    # Django warns of an iterator of the wrong kind.
    assert "Warning" not in (tmp_path / f"{kind}.log").read_text()
