"""Errors of providers, as they say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from nexo_django.completion import errors
from nexo_django.exceptions import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    TurnCancelled,
)

MODEL = "openai/gpt-4o"


class APIStatusError(Exception):
    """What a provider library raises, as far as it is looked at."""

    def __init__(self, message: str, status: int | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message, self.status_code = message, status
        vars(self).update(fields)


# Named as in a library that speaks to providers.
APIStatusError.__module__ = "openai"


def made(name: str, message: str = "", status: int | None = None, **fields: Any) -> Exception:
    cls = type(name, (APIStatusError,), {"__module__": "litellm.exceptions"})
    return cls(message, status, **fields)


OVERFLOWS = [
    (400, "This model's maximum context length is 8192 tokens. However, you requested 9000."),
    (400, "Input tokens exceed the configured limit of 272000 tokens."),
    (400, "prompt is too long: 208310 tokens > 200000 maximum"),
    (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed"),
    (400, "Requested token count exceeds the model's maximum context length of 131072 tokens."),
    (400, "Input is too long for requested model."),
    (400, "Too many input tokens. Max input tokens: 8000, request input token count: 9000"),
    (400, "expected maxLength: 400000, actual: 500000"),
    (400, "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768"),
    (400, "Please reduce the length of the messages or completion."),
    (400, "the request exceeds the available context size. try increasing it"),
    (400, "Current length is 9000 while limit is 8192"),
    (400, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"),
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
    (400, "This model's maximum prompt length is 131072 but the request contains 140000 tokens."),
    (400, "Range of input length should be [1, 30720]"),
    (400, "Your request exceeded model token limit: 8192"),
    (400, "Prompt has too many tokens."),
    (400, "The prompt is longer than the model's context length: 4096"),
    (400, "400 Request payload size exceeds the limit"),
    (400, "Input text length should not exceed 1024 tokens"),
    (400, "context_length_exceeded"),
    (400, "tokens in request more than max tokens allowed: context window exceeded"),
    (413, "Request too large for model in tokens per minute (TPM): Limit 6000, Requested 8000"),
    (429, "Request too large for gpt-4o: Limit 30000, Requested 40000. The input or output tokens"),
    (500, "maximum context length is 4096 tokens"),
    (None, "prompt too long; exceeded max context length by 12 tokens"),
]


@pytest.mark.parametrize(("status", "text"), OVERFLOWS)
def test_every_way_to_say_that_the_context_is_full(status: int | None, text: str) -> None:
    error = made("BadRequestError", text, status)
    assert type(errors.classify(error, MODEL)) is ContextOverflow


@pytest.mark.parametrize(
    ("name", "status", "text", "kind"),
    [
        ("RateLimitError", 429, "Too many tokens, please wait before trying again.", RateLimited),
        ("BadRequestError", 400, "Too many tokens, please wait before trying again", BadRequest),
        ("BadRequestError", 400, "Invalid 'user': string too long. string_above_max_length", None),
        ("BadRequestError", 400, "max_tokens is too large: 100000", BadRequest),
        ("BadRequestError", 400, "Invalid 'temperature'", BadRequest),
        ("AuthenticationError", 401, "the prompt is too long", AuthFailed),
    ],
)
def test_what_only_sounds_like_it(name: str, status: int, text: str, kind: Any) -> None:
    found = errors.classify(made(name, text, status), MODEL)
    assert type(found) is (kind or BadRequest)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (made("ContextWindowExceededError", "no", 400), ContextOverflow, False),
        (made("AuthenticationError", "no", 401), AuthFailed, False),
        (made("PermissionDeniedError", "no", 403), AuthFailed, False),
        (made("BadRequestError", "API key not valid. Please pass a valid one", 400), None, False),
        (made("RateLimitError", "no", 429), RateLimited, True),
        (made("RateLimitError", "insufficient_quota", 429), RateLimited, False),
        (made("BadRequestError", "Your credit balance is too low", 400), RateLimited, False),
        (made("PaymentRequiredError", "no", 402), RateLimited, False),
        (made("Timeout", "no", 408), ProviderTimeout, True),
        (made("Timeout", "no", 504), ProviderTimeout, True),
        (made("InternalServerError", "no", 500), ProviderUnavailable, True),
        (made("InternalServerError", "Connection error.", 500), ProviderUnavailable, True),
        (made("APIConnectionError", "no", 500), ProviderUnavailable, True),
        (made("ServiceUnavailableError", "no", 503), ProviderUnavailable, True),
        (made("MidStreamFallbackError", "no", 503), ProviderUnavailable, True),
        (made("APIError", "overloaded", 529), ProviderUnavailable, True),
        (made("NotFoundError", "no", 404), BadRequest, False),
        (made("ContentPolicyViolationError", "no", 400), BadRequest, False),
        (made("UnprocessableEntityError", "no", 422), BadRequest, False),
        (TypeError("unexpected keyword"), ProviderError, False),
    ],
)
def test_kinds(error: Exception, kind: Any, retryable: bool) -> None:
    found = errors.classify(error, MODEL)
    assert type(found) is (kind or AuthFailed)
    assert found.retryable is retryable
    assert str(found).startswith(MODEL)


@pytest.mark.parametrize(
    "text",
    [
        "The api_key client option must be set either by passing api_key to the client or by"
        " setting the OPENAI_API_KEY environment variable",
        "Missing Anthropic API Key - A call is being made to anthropic but no key is set",
        "No API key provided.",
        "Missing credentials. Please pass an `api_key`",
        "You didn't provide an API key.",
    ],
)
def test_a_missing_key_is_no_failure_of_the_server(text: str) -> None:
    error = made("InternalServerError", text, 500)
    found = errors.classify(error, "anthropic/claude-sonnet-4-5", (), "anthropic")
    assert type(found) is AuthFailed
    assert not found.retryable
    assert "ANTHROPIC_API_KEY" in str(found)


def test_neither_secrets_nor_content_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "nexo_django.completion.errors")
    text = "Bad key my-own-secret and sk-abcdefghijkl for 'Dear diary'"
    body = {"error": {"code": "my-own-secret", "type": "invalid_request_error", "param": "a b c"}}
    found = errors.classify(made("BadRequestError", text, 400, body=body), MODEL, ["my-own-secret"])
    assert "secret" not in str(found)
    assert "diary" not in str(found)
    assert "type invalid_request_error" in str(found)
    assert "my-own-secret" not in caplog.text
    assert "sk-abcdefghijkl" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456",
        "https://user:password123@host/v1",
        "https://host/v1?key=abc123456&x=1",
        "sk-proj-abcdefgh1234",
        "AIzaSyA1234567890",
        "gsk_abcdefgh1234",
    ],
)
def test_what_looks_like_a_key_is_redacted(text: str) -> None:
    shown = errors.redact(text)
    assert "[redacted]" in shown
    assert not any(key in shown for key in ("abcdef", "password123", "abc123456", "A1234567"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    error = made("RateLimitError", "no", 429, litellm_response_headers=headers)
    assert errors.classify(error, MODEL).retry_after == seconds


def test_the_wait_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    error = made("RateLimitError", "no", 429, litellm_response_headers={"retry-after": date})
    assert 3000 < (errors.classify(error, MODEL).retry_after or 0) <= 3600


class HostLimit(Exception):
    """A time limit of the host's own."""


class SoftTimeLimitExceeded(Exception):
    """As billiard has it: a plain Exception."""

    __module__ = "billiard.exceptions"


def wrapped(cause: BaseException, outer: BaseException | None = None) -> Exception:
    """Raise and wrap as a library does."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise made("APIConnectionError", "Connection error.") from error
    except Exception as error:
        return error


@pytest.mark.parametrize(
    "signal",
    [SoftTimeLimitExceeded(), HostLimit(), KeyboardInterrupt(), GeneratorExit(), TurnCancelled()],
)
def test_a_signal_is_found_in_what_it_was_wrapped_into(signal: BaseException) -> None:
    error = wrapped(signal)
    assert errors.aborted(error) is signal
    assert errors.aborted(made("MidStreamFallbackError", original_exception=error)) is signal


def test_an_error_of_the_library_is_no_signal() -> None:
    inner = type("ConnectError", (Exception,), {"__module__": "httpcore"})()
    assert errors.aborted(wrapped(inner)) is None
    assert errors.aborted(made("RateLimitError", "no", 429)) is None


def test_what_was_handled_before_is_no_signal() -> None:
    outer = HostLimit()
    try:
        raise outer
    except HostLimit:
        error = wrapped(APIStatusError("no"))
    assert errors.aborted(error) is outer
    assert errors.aborted(error, outer) is None


def test_a_provider_that_was_not_reached_has_no_status() -> None:
    failure = errors.classify(made("InternalServerError", "Connection error.", 500), "openai/m")
    assert str(failure) == "openai/m: the provider could not be reached."
    assert failure.status is None
