"""Language models: a row for each that is used, made when it first is."""

from __future__ import annotations

import pytest

from nexo_django.completion import catalogue
from nexo_django.exceptions import ConfigurationError
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


@pytest.mark.parametrize(
    "name",
    [
        "custom_openai/" + "m" * 180,
        "sagemaker_chat/jumpstart" + "x" * 120 + "-us-west-2-endpoint",
        "x" * 255,
        "p" * 100 + "/" + "é" * 154,
    ],
)
def test_a_long_name_has_a_row_too(name: str) -> None:
    row = Model.named(name, "default")
    row.refresh_from_db()
    assert row.litellm_id == name
    assert row.is_named(name)
    assert Model.named(name, "default") == row
    assert len(row.family) <= 100


@pytest.mark.parametrize(
    "name",
    ["openai/" + "m" * 900, "x" * 256, "p" * 101 + "/m", "openai/a\x00b", "openai/\ud800"],
)
def test_an_id_that_can_not_be_stored_is_refused(name: str) -> None:
    assert catalogue.problem(name)
    with pytest.raises(ConfigurationError, match="can't be used"):
        Model.named(name, "default")
    assert not Model.objects.exists()


def test_two_models_that_look_alike_are_two() -> None:
    assert Model.named("x/m", "default") != Model.named("x/M", "default")


@pytest.mark.django_db(transaction=True)
def test_a_model_used_at_once_has_one_row() -> None:
    rows = side_by_side(*[lambda: Model.named("some/model", "default").pk] * 4)
    assert len(set(rows)) == 1
    assert Model.objects.count() == 1
