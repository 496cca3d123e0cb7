"""What is known of models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from nexo_django.completion import catalogue


@pytest.mark.parametrize("model", ["openai/gpt-4o", "gpt-4o"])
def test_a_listed_model(model: str) -> None:
    facts = catalogue.facts(model)
    assert facts.listed
    assert (facts.provider, facts.name, facts.family) == ("openai", "gpt-4o", "gpt")
    assert (facts.context_window, facts.max_output_tokens) == (128_000, 16_384)
    assert facts.prices["input"] == Decimal("0.0000025")
    assert facts.priced
    assert "function_calling" in facts.capabilities


@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-sonnet-4-5",
        "gemini/gemini-2.5-flash",
        "mistral/mistral-large-latest",
        "azure/gpt-4o",
        "vertex_ai/gemini-2.5-flash",
        "claude-opus-latest",
    ],
)
def test_models_of_many_providers(model: str) -> None:
    facts = catalogue.facts(model)
    assert facts.context_window
    assert facts.priced


@pytest.mark.parametrize(
    "model", ["foo/bar", "bar", "", "/", "openai/", "groq/gpt-4o", "sample_spec"]
)
def test_an_unknown_model(model: str) -> None:
    facts = catalogue.facts(model)
    assert not facts.listed
    assert not facts.priced
    assert facts.context_window is None


def test_the_embedded_model() -> None:
    facts = catalogue.facts("nexo/offline")
    assert facts.listed
    assert facts.context_window
    assert facts.prices["output"] == 0


def test_the_whole_list_can_be_read() -> None:
    for model in catalogue._entries():
        catalogue.facts(model)


def test_many_threads_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = catalogue._read
    monkeypatch.setattr(catalogue, "_cache", None)
    monkeypatch.setattr(catalogue, "_read", lambda: reads.append(1) or read())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(catalogue.facts, ["openai/gpt-4o"] * 32))
    assert len(set(map(repr, found))) == 1
    assert len(reads) == 1
