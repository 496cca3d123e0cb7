"""A small long run: no request is refused, and the task stays in view to the end."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings

from tests.fuzz.long_run import run


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_task_that_is_far_too_long_for_its_window(settings: Any, seed: int) -> None:
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}
    report = run(steps=25, window=16_000, seed=seed)
    assert not report.failed, str(report)
    assert report.largest <= 16_000
    assert report.summaries
