"""What providers differ in, as far as a request depends on it; no code, only facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# How reasoning goes back to the provider that gave it.
BLOCKS, TEXT, ITEMS, SIGNATURES = "blocks", "text", "items", "signatures"


@dataclass(frozen=True)
class Schemas:
    """How a provider holds an answer to a schema.

    For models with the capability, as the price list names it; whether also when tools are
    offered, and whether only to a schema whose objects are closed.
    """

    capability: str = "response_schema"
    beside_tools: bool = False
    closed: bool = False


@dataclass(frozen=True)
class Provider:
    """One provider's rules.

    `keys` are environment variables, any one of which gives the credentials; none means that
    the provider needs no key, or has ways of its own to find one. `call_id` is what the id of
    a tool call must match whole, and `id_length` how long one made up for it is. `schemas` is
    None where an answer's schema is told in words only. `letter_first` says that a tool's name
    begins with no digit or dash, `differing` that calls side by side must differ, and `closing`
    that the assistant must speak between results and the user.
    """

    keys: tuple[str, ...] = ()
    call_id: re.Pattern[str] = re.compile(r"[!-~]{1,64}")
    id_length: int = 24
    replays: str | None = None
    schemas: Schemas | None = None
    letter_first: bool = False
    differing: bool = False
    closing: bool = False


_BESIDE, _ALONE = Schemas(beside_tools=True), Schemas()
# Elsewhere litellm would make a tool of the schema and force it, past the agent's own.
_NATIVE = Schemas("native_structured_output", beside_tools=True, closed=True)

_WORD = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_MISTRAL = re.compile(r"mistral|mixtral|ministral|codestral|devstral|magistral|pixtral", re.I)
_CLAUDE = re.compile(r"claude|anthropic", re.IGNORECASE)
_CLAUDE_BLOCKS = frozenset({"anthropic", "azure_ai", "bedrock", "databricks", "vertex_ai"})

# litellm leaves out a call that is like another of its message, and Google then counts one
# result too many.
_GOOGLE = Provider(replays=SIGNATURES, letter_first=True, differing=True)

PROVIDERS: dict[str, Provider] = {
    "openai": Provider(("OPENAI_API_KEY",), replays=ITEMS, schemas=_BESIDE),
    "azure": Provider(
        ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_ID"),
        replays=ITEMS,
        schemas=_BESIDE,
    ),
    "anthropic": Provider(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), _WORD, replays=BLOCKS, schemas=_NATIVE
    ),
    "gemini": replace(_GOOGLE, keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"), schemas=_ALONE),
    "vertex_ai": _GOOGLE,
    "bedrock": Provider((), _WORD, replays=BLOCKS),
    "mistral": Provider(("MISTRAL_API_KEY",), _NINE, 9, replays=TEXT, schemas=_ALONE, closing=True),
    "codestral": Provider(("CODESTRAL_API_KEY",), _NINE, 9),
    "cohere": Provider(("COHERE_API_KEY", "CO_API_KEY"), _WORD),
    "cohere_chat": Provider(("COHERE_API_KEY", "CO_API_KEY"), _WORD),
    "deepseek": Provider(("DEEPSEEK_API_KEY",), replays=TEXT),
    "moonshot": Provider(("MOONSHOT_API_KEY",), replays=TEXT),
    "minimax": Provider(("MINIMAX_API_KEY",), replays=TEXT),
    "zai": Provider(("ZAI_API_KEY",), replays=TEXT),
    "together_ai": Provider(
        ("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN"),
        replays=TEXT,
    ),
    "dashscope": Provider(("DASHSCOPE_API_KEY",)),
    "groq": Provider(("GROQ_API_KEY",)),
    "xai": Provider(("XAI_API_KEY",)),
    "openrouter": Provider(("OPENROUTER_API_KEY", "OR_API_KEY")),
    "perplexity": Provider(("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY")),
    "fireworks_ai": Provider(
        ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN")
    ),
    "deepinfra": Provider(("DEEPINFRA_API_KEY",)),
    "cerebras": Provider(("CEREBRAS_API_KEY",)),
    "nvidia_nim": Provider(("NVIDIA_NIM_API_KEY",)),
    "sambanova": Provider(("SAMBANOVA_API_KEY",)),
    "novita": Provider(("NOVITA_API_KEY",)),
    "nebius": Provider(("NEBIUS_API_KEY",)),
    "ai21_chat": Provider(("AI21_API_KEY",)),
    "replicate": Provider(("REPLICATE_API_KEY", "REPLICATE_API_TOKEN")),
}
UNKNOWN = Provider()


def of(provider: str, model: str = "") -> Provider:
    """Give a provider's rules; one that resells a model of others has theirs for ids."""
    known = PROVIDERS.get(provider, UNKNOWN)
    if _MISTRAL.search(model):
        return replace(known, call_id=_NINE, id_length=9, closing=True)
    if _CLAUDE.search(model):
        replays = BLOCKS if provider in _CLAUDE_BLOCKS else known.replays
        return replace(known, call_id=_WORD, replays=replays, letter_first=False, differing=False)
    return known


def issuer(provider: str, model: str) -> str:
    """Name whom reasoning belongs to: one model of one provider."""
    return f"{provider}/{model.removeprefix(f'{provider}/')}"
