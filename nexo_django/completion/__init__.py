"""Model calls: the completion that a pipeline ends in, and what it needs to know of models.

The names come when they are first used, and litellm only with the first call of a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexo_django.completion import catalogue as catalogue
    from nexo_django.completion import offline as offline
    from nexo_django.completion.litellm_completion import LiteLLMCompletion as LiteLLMCompletion
    from nexo_django.completion.litellm_completion import check as check
    from nexo_django.completion.litellm_completion import warm as warm

_FACE = ("LiteLLMCompletion", "check", "warm")
_MODULES = ("catalogue", "offline")
__all__ = ["LiteLLMCompletion", "catalogue", "check", "offline", "warm"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _FACE:
        return getattr(import_module(f"{__name__}.litellm_completion"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
