"""Turning what a provider library raises into our errors, with nothing secret or said in them.

The library's classes are known by name, so that it need not be imported.
"""

from __future__ import annotations

import logging
import re
import sys
import sysconfig
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from nexo_django.completion import providers
from nexo_django.exceptions import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    NexoError,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)

logger = logging.getLogger(__name__)

# What providers say when a request is too large, lower-case. litellm knows about half of them.
_OVERFLOW = re.compile(
    "|".join(
        (
            r"context[ _-]?(length|window|limit|size)[ _-]?(exceeded|exceeds|overflow)",
            r"exceed(s|ed|ing)? (the |this |your )?(model'?s? )?(available |maximum |max )?"
            r"(context|token|input)[ _-]?(length|window|limit|size)",
            r"maximum (context|prompt|input|sequence) length",
            r"max(imum)?[ _]input[ _](tokens?|length)",
            r"(model'?s )?maximum context limit",
            r"exceed context limit",
            r"longer than the model'?s (maximum )?context length",
            r"input tokens exceed the configured limit",
            r"requested token count exceeds",
            r"token count .{0,60}exceeds the (maximum|model)",
            r"exceeds the (maximum|max) number of (input )?tokens",
            r"(prompt|input|inputs|request|conversation|message) (is |are |was )?too (long|large)"
            r"(?! for the url)",
            r"prompt: length",
            r"prompt (has|contains) too many tokens",
            r"too many (input |prompt )?tokens",
            r"inputs?`? tokens \+ `?max_new_tokens`? must be",
            r"current length is .{0,40}while limit is",
            r"string too long\. expected a string with maximum length",
            r"length limit exceeded",
            r"input text length should not exceed",
            r"expected maxlength:",
            r"request payload size exceeds",
            r"input validation error: .{0,40}(inputs|tokens)",
            r"larger than the (maximum|model).{0,20}context",
            r"does not fit (in|into) the (model'?s )?context",
            r"please reduce (the length of |your )(the )?(messages?|prompt|input)",
            r"tokens must be reduced in order to run",
            r"exceeded model token limit",
            r"(prompt|input) exceeds max(imum)? length",
            r"range of input length should be",
            r"context window (is )?full",
            r"too large for (the |this )?model",
        )
    )
)
# The same words mean a rate, not a size.
_THROTTLED = re.compile(r"please wait before trying again|tokens per (day|month)|throttl")
_NOT_A_SIZE = re.compile(r"string_above_max_length|invalid 'user'|max_tokens is too large")
_TOO_LARGE_FOR_THE_RATE = re.compile(r"request too large|tokens must be reduced")
_NO_KEY = re.compile(
    r"api_key client option must be set|missing credentials|no api[ _]key (was )?(provided|found)"
    r"|missing .{0,40}api[ _]?key|api[ _]key (is |was )?(missing|required|not (set|found|provided))"
    r"|(could not|unable to) (find|locate|resolve) (your |default )?(authentication |credentials)"
    r"|default credentials were not found|didn't provide an api key|provide an api[_ ]key"
)
_BAD_KEY = re.compile(r"invalid[ _]api[ _]key|api key not valid|incorrect api key|api_key_invalid")
_UNREACHED = re.compile(
    r"connection error|connection refused|connect(ion)? call failed|name or service not known"
    r"|nodename nor servname|cannot connect to host|all connection attempts failed"
    r"|temporary failure in name resolution|network is unreachable"
)
_NO_MONEY = re.compile(
    r"insufficient_quota|exceeded your current quota|insufficient (balance|credits|funds)"
    r"|credit balance is too low"
)
_NOT_REACHED = "the provider could not be reached"
_CODES = ("code", "type", "param")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{0,63}")
_KEY_SHAPED = re.compile(
    r"\b(sk|pk|rk|gsk|xai|key|hf|r8|AIza|AKIA)[-_]?[A-Za-z0-9_-]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"
    r"|(?i:(?<=key=)|(?<=token=)|(?<=secret=)|(?<=signature=))[^\s&\"']+"
)


def classify(
    error: BaseException,
    model: str,
    secrets: Iterable[str] = (),
    provider: str = "",
    outer: BaseException | None = None,
) -> ProviderError:
    """Give our error for what a call of a model raised.

    The text is ours: it names the model, the status and the provider's codes, never what the
    provider wrote, since that may repeat the prompt or a key. The provider's own text goes,
    without the secrets, to this module's logger at DEBUG.
    """
    text = _text(error)
    logger.debug("%s failed: %s", model, redact(text, secrets))
    provider = provider or model.partition("/")[0]
    status = _status(error)
    links = chain(error, outer)
    names = {cls.__name__ for link in links for cls in type(link).__mro__}
    kind, says, retryable = _kind(names, text.lower(), status, provider)
    if says == _NOT_REACHED:
        # Nobody answered: the status is one that the library made up.
        status = None
    shown = "" if status is None else f" (status {status}{_codes(error, secrets)})"
    failure = kind(f"{model}: {says}{shown}.", retryable=retryable, status=status, retry_after=None)
    if failure.retryable:
        failure.retry_after = retry_after(links)
    return failure


Kind = tuple[type[ProviderError], str, bool | None]


def _kind(names: set[str], text: str, status: int | None, provider: str) -> Kind:
    if _is_overflow(names, text, status):
        return ContextOverflow, "the request is larger than the model's context", None
    if _NO_KEY.search(text):
        return AuthFailed, _no_key(provider), None
    if status in (401, 403) or "AuthenticationError" in names or _BAD_KEY.search(text):
        return AuthFailed, f"the provider refused the key; {_set(provider)}", None
    if _NO_MONEY.search(text) or status == 402:
        return RateLimited, "the account's quota or credit is used up", False
    if status == 429 or "RateLimitError" in names:
        return RateLimited, "the provider limits how often it may be asked", None
    if _is_unreached(names, text):
        return ProviderUnavailable, _NOT_REACHED, None
    if status in (408, 504) or names & {"Timeout", "APITimeoutError", "TimeoutException"}:
        return ProviderTimeout, "the provider did not answer in time", None
    if status == 404 or "NotFoundError" in names:
        return BadRequest, "the provider does not know this model or address", None
    if "ContentPolicyViolationError" in names:
        return BadRequest, "the provider's content policy refused the request", None
    if status is not None and 400 <= status < 500:
        return BadRequest, "the provider refused the request", None
    if status is not None or names & {"APIConnectionError", "APIError"}:
        return ProviderUnavailable, "the provider failed, or what it sent could not be read", None
    return ProviderError, "the call could not be made; check the completion's options", None


def _is_overflow(names: set[str], text: str, status: int | None) -> bool:
    if _THROTTLED.search(text) or status in (401, 403, 404, 408):
        return False
    if status == 429:
        return bool(_TOO_LARGE_FOR_THE_RATE.search(text))
    if "ContextWindowExceededError" in names:
        return True
    return bool(_OVERFLOW.search(text)) and not _NOT_A_SIZE.search(text)


def _is_unreached(names: set[str], text: str) -> bool:
    reached = names & {"Timeout", "APITimeoutError", "TimeoutException", "RemoteProtocolError"}
    refused = names & {
        "ConnectError",
        "ConnectionRefusedError",
        "gaierror",
        "EndpointConnectionError",
    }
    return bool(refused or (not reached and _UNREACHED.search(text)))


def _no_key(provider: str) -> str:
    return f"there is no API key; {_set(provider)}"


def _set(provider: str) -> str:
    keys = providers.of(provider).keys
    variable = f"set {' or '.join(keys)} in the environment" if keys else "set the provider's key"
    return f"{variable}, or give api_key="


def no_key(model: str, provider: str) -> str:
    """Say that a model's key is missing and how to give it."""
    return f"{model}: {_no_key(provider)}."


def _text(error: BaseException) -> str:
    # str() of litellm's errors may end in the messages that were sent.
    said = getattr(error, "message", None)
    return said if isinstance(said, str) else str(error)


def _status(error: BaseException) -> int | None:
    found = getattr(error, "status_code", None)
    return found if isinstance(found, int) and 100 <= found < 600 else None


def _codes(error: BaseException, secrets: Iterable[str]) -> str:
    body = getattr(error, "body", None)
    body = body if isinstance(body, dict) else {}
    inner = body.get("error")
    inner = inner if isinstance(inner, dict) else body
    found = {name: inner.get(name) or getattr(error, name, None) for name in _CODES}
    return "".join(
        f", {name} {redact(value, secrets)}"
        for name, value in found.items()
        if isinstance(value, str) and _IDENTIFIER.fullmatch(value)
    )


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Give a text without the secrets, and without what looks like one."""
    for secret in sorted({s for s in secrets if s}, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return _KEY_SHAPED.sub("[redacted]", text)


def retry_after(links: Iterable[BaseException]) -> float | None:
    """Give the seconds that a provider asked to wait, from the headers that errors carry."""
    headers: dict[str, str] = {}
    for link in links:
        for source in (getattr(link, "response", None), link):
            for name in ("headers", "litellm_response_headers"):
                found: Any = getattr(source, name, None)
                if hasattr(found, "items"):
                    headers = {**{str(k).lower(): str(v) for k, v in found.items()}, **headers}
    if (asked := _seconds(headers.get("retry-after-ms"))) is not None:
        return asked / 1000
    return _seconds(headers.get("retry-after"))


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if seconds == seconds and seconds < float("inf") else None


def chain(error: BaseException, outer: BaseException | None = None) -> list[BaseException]:
    """Give an error and what caused it, each once, less what was being handled before."""
    found: list[BaseException] = []
    seen = set() if outer is None else {id(link) for link in chain(outer)}
    waiting: list[Any] = [error]
    while waiting:
        link = waiting.pop(0)
        if isinstance(link, BaseException) and id(link) not in seen:
            seen.add(id(link))
            found.append(link)
            original = getattr(link, "original_exception", None)
            waiting += [link.__cause__, link.__context__, original]
    return found


# A class from one of these means that the call failed; from elsewhere, that it was stopped.
_CALLED = frozenset(
    {
        *("litellm", "openai", "anthropic", "google", "vertexai", "boto3", "botocore"),
        *("httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp"),
        *("requests", "urllib3", "certifi", "grpc", "tenacity", "jinja2", "orjson"),
        *("azure", "msal", "oci", "jwt", "cryptography", "socksio", "brotli", "zstandard"),
        *("pydantic", "pydantic_core", "tokenizers", "tiktoken", "huggingface_hub"),
    }
)
_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))),
)


def aborted(error: BaseException, outer: BaseException | None = None) -> BaseException | None:
    """Give the signal to stop that a provider library wrapped into an error of its own.

    Such as a worker's time limit, raised by a signal handler while the library ran.
    """
    return next((link for link in chain(error, outer) if _is_abort(link)), None)


def _is_abort(error: BaseException) -> bool:
    if isinstance(error, ProviderError):
        return False
    if isinstance(error, NexoError) or not isinstance(error, Exception):
        return True
    root = type(error).__module__.partition(".")[0]
    if root in sys.stdlib_module_names:
        return _raised_by_the_host(error)
    return root not in _CALLED


def _raised_by_the_host(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "<" if frame is None else frame.tb_frame.f_code.co_filename
    return not file.startswith(("<", *_LIBRARIES))
