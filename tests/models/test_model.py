"""Language models: a row for each that is used, made when it first is."""

from __future__ import annotations

import pytest

from nexo_django.models import Model
from tests.models.support import side_by_side

pytestmark = pytest.mark.django_db


def test_a_listed_model_has_what_the_catalogue_knows() -> None:
    row = Model.named("openai/gpt-4o-mini", "default")
    assert (row.provider, row.model_id, row.litellm_id) == (
        "openai",
        "gpt-4o-mini",
        "openai/gpt-4o-mini",
    )
    assert row.context_window == 128_000
    assert row.prices["input"]
    assert "function_calling" in row.capabilities
    assert Model.named("openai/gpt-4o-mini", "default") == row
    assert row.is_named("openai/gpt-4o-mini")
    assert row.is_named("gpt-4o-mini")
    assert not row.is_named("openai/gpt-4o")


@pytest.mark.parametrize("name", ["nobody/knows-this", "unknown", "openrouter/openai/odd-one"])
def test_an_unknown_model_has_a_row_too(name: str) -> None:
    row = Model.named(name, "default")
    assert row.litellm_id == name
    assert row.is_named(name)
    assert (row.context_window, row.prices) == (None, {})


def test_two_models_that_look_alike_are_two() -> None:
    assert Model.named("x/m", "default") != Model.named("x/M", "default")


@pytest.mark.django_db(transaction=True)
def test_a_model_used_at_once_has_one_row() -> None:
    rows = side_by_side(*[lambda: Model.named("some/model", "default").pk] * 4)
    assert len(set(rows)) == 1
    assert Model.objects.count() == 1
