"""The facts about providers."""

from __future__ import annotations

import pytest

from nexo_django.completion import providers


@pytest.mark.parametrize(
    ("provider", "model", "valid"),
    [
        ("mistral", "mistral/mistral-large-latest", "abcDEF123"),
        ("azure_ai", "azure_ai/mistral-large", "abcDEF123"),
        ("anthropic", "anthropic/claude-sonnet-4-5", "toolu_01-a"),
        ("openrouter", "openrouter/anthropic/claude-sonnet-4", "toolu_01-a"),
        ("moonshot", "moonshot/kimi-k2", "functions.weather:0"),
        ("nobody", "nobody/x", "call_1"),
    ],
)
def test_ids_of_calls(provider: str, model: str, valid: str) -> None:
    rules = providers.of(provider, model)
    assert rules.call_id.fullmatch(valid)
    assert rules.call_id.fullmatch("a" * rules.id_length)
    assert not rules.call_id.fullmatch("")
    assert not rules.call_id.fullmatch("a" * 65)


@pytest.mark.parametrize(
    ("provider", "model", "replays"),
    [
        ("vertex_ai", "vertex_ai/claude-sonnet-4-5", providers.BLOCKS),
        ("vertex_ai", "vertex_ai/gemini-2.5-flash", providers.SIGNATURES),
        ("openrouter", "openrouter/anthropic/claude-sonnet-4", None),
        ("deepseek", "deepseek/deepseek-reasoner", providers.TEXT),
        ("nobody", "nobody/x", None),
    ],
)
def test_how_reasoning_goes_back(provider: str, model: str, replays: str | None) -> None:
    assert providers.of(provider, model).replays == replays


def test_an_issuer_has_one_name() -> None:
    assert providers.issuer("openai", "gpt-4o") == providers.issuer("openai", "openai/gpt-4o")
