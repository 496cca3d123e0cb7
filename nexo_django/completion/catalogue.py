"""What is known of a model, from the price list that litellm ships, without importing litellm."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nexo_django.sanitize import clean_text

logger = logging.getLogger(__name__)
PRICE_LIST = "model_prices_and_context_window_backup.json"
# How long a model's litellm id and its provider's name may be.
LONGEST_ID, LONGEST_PROVIDER = 255, 100
OFFLINE = "nexo/offline"

# In US dollars a token; the names are those of the list, less "_cost_per_token".
_PRICES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "reasoning": "output_cost_per_reasoning_token",
}


@dataclass(frozen=True)
class Facts:
    """What is known of one model; None and empty where nothing is.

    `context_window` is how many tokens a request may have, `prices` are in US dollars a
    token, by the names of the fields of Usage. `listed` is False for a model that the list
    does not have.
    """

    provider: str
    model_id: str
    listed: bool = False
    context_window: int | None = None
    max_output_tokens: int | None = None
    prices: dict[str, Decimal] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The model's name without its provider."""
        return self.model_id.rpartition("/")[2]

    @property
    def family(self) -> str:
        """The first word of the model's name."""
        return self.name.partition("-")[0]

    @property
    def priced(self) -> bool:
        """Whether a cost can be worked out."""
        return "input" in self.prices and "output" in self.prices


def problem(model_id: str) -> str | None:
    """Say why no store could keep a model's id, or None where each can."""
    if clean_text(model_id) != model_id:
        return "it has characters that can't be stored"
    if len(model_id) > LONGEST_ID:
        return f"it is longer than {LONGEST_ID} characters"
    if "/" in model_id and len(model_id.partition("/")[0]) > LONGEST_PROVIDER:
        return f"its provider's name is longer than {LONGEST_PROVIDER} characters"
    return None


def facts(model_id: str) -> Facts:
    """Give what is known of a model by its litellm id; never fails.

    The list is read once, when it is first needed.
    """
    if model_id == OFFLINE:
        return _OFFLINE_FACTS
    provider, name = model_id.split("/", 1) if "/" in model_id else ("", model_id)
    entry = _find(model_id, provider, name)
    if entry is None:
        return Facts(provider, name)
    return Facts(
        provider or str(entry.get("litellm_provider", "")),
        name,
        listed=True,
        context_window=_count(entry.get("max_input_tokens")) or _count(entry.get("max_tokens")),
        max_output_tokens=_count(entry.get("max_output_tokens")),
        prices=_prices(entry),
        capabilities=_capabilities(entry),
        modalities=tuple(str(m) for m in entry.get("supported_modalities") or ("text",)),
    )


def _find(model_id: str, provider: str, name: str) -> dict[str, Any] | None:
    entries = _entries()
    for key in (model_id, name) if provider else (model_id,):
        entry = entries.get(key)
        if entry is not None and (target := entry.get("alias_of")):
            entry = entries.get(target)
        if entry is None:
            continue
        # A bare name in the list belongs to one provider, not to all who serve the model.
        if key == model_id or str(entry.get("litellm_provider", "")).startswith(provider):
            return entry
    return None


_lock = threading.Lock()
_cache: dict[str, dict[str, Any]] | None = None


def _entries() -> dict[str, dict[str, Any]]:
    global _cache
    if _cache is None:
        with _lock:
            if _cache is None:
                _cache = _read()
    return _cache


def _read() -> dict[str, dict[str, Any]]:
    try:
        # find_spec looks for the package; it does not run it.
        spec = find_spec("litellm")
        folders = (spec and spec.submodule_search_locations) or []
        path = next(p for f in folders if (p := Path(f) / PRICE_LIST).is_file())
        entries = json.loads(path.read_bytes())
    except (StopIteration, OSError, ValueError) as error:
        logger.warning("The list of models is not readable: %s", type(error).__name__)
        return {}
    return {k: v for k, v in entries.items() if isinstance(v, dict) and k != "sample_spec"}


def _count(value: Any) -> int | None:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return int(value) if whole else None


def _prices(entry: dict[str, Any]) -> dict[str, Decimal]:
    found = {name: entry.get(key) for name, key in _PRICES.items()}
    return {
        name: Decimal(str(price))
        for name, price in found.items()
        if isinstance(price, int | float) and not isinstance(price, bool)
    }


def _capabilities(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        sorted(
            key.removeprefix("supports_")
            for key, value in entry.items()
            if key.startswith("supports_") and value is True
        )
    )


_OFFLINE_FACTS = Facts(
    "nexo",
    "offline",
    listed=True,
    context_window=128_000,
    max_output_tokens=16_384,
    prices={name: Decimal(0) for name in _PRICES},
    capabilities=("function_calling", "parallel_function_calling", "system_messages"),
    modalities=("text",),
)
