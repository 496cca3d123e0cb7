"""A few dozen kills; `make kill-matrix` does thousands."""

from __future__ import annotations

import pytest

from tests.durability.conftest import Experiment


@pytest.mark.timeout(900)
def test_a_killed_worker_loses_nothing_and_repeats_nothing(experiment: Experiment) -> None:
    printed = experiment("kill_matrix", "--kills", "48", "--seed", "3")
    assert "0 failures" in printed
