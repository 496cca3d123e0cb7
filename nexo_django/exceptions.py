"""Every error the package raises, under one root; no caller ever sees a provider library's class."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured


class NexoError(Exception):
    """Something went wrong in nexo_django."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigurationError(NexoError, ImproperlyConfigured):
    """A setting, an agent or its model is not configured correctly."""


class AgentNotRegistered(NexoError, LookupError):
    """No agent of that name is registered."""


class SessionNotFound(NexoError, LookupError):
    """There is no session of that agent and instance."""


class NothingToContinue(NexoError):
    """The session has no turn that could go on."""


class NotSupported(NexoError):
    """This installation does not have what was asked for."""


class SessionBusy(NexoError):
    """Another turn of this session is running.

    `retry_after` is in seconds: when the other's lease ends unless it is renewed.
    """

    def __init__(self, message: str | None = None, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LeaseLost(NexoError):
    """Another process took this session over; this one can write nothing more."""


class DecisionRefused(NexoError):
    """A decision that can't be made on that call."""


class CallNotPending(DecisionRefused, LookupError):
    """No such call of the session's unfinished step waits for a decision."""


class AlreadyDecided(DecisionRefused):
    """Somebody decided on the call before; `by` and `at` say who and when."""

    def __init__(self, message: str | None = None, *, by: str = "", at: Any = None) -> None:
        super().__init__(message)
        self.by, self.at = by, at


class KeyConflict(NexoError):
    """The key was used before with another prompt."""


class InsideTransaction(NexoError):
    """A turn can't run inside a database transaction."""


class StoreFailed(NexoError):
    """The store could not be read or written; what was stored before is kept."""


class TurnCancelled(NexoError):
    """The turn was cancelled."""


class LimitExceeded(NexoError):
    """The turn reached its limit of time or cost."""

    def __init__(self, message: str | None = None, *, limit: str = "time") -> None:
        super().__init__(message)
        self.limit = limit


class ContextTooLarge(NexoError):
    """The messages do not fit the model's context, and nothing more can be given up.

    `floor` is the least that must be sent and `budget` what fits, both in tokens;
    `culprit` says which message is the largest of what can't be given up.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        floor: int | None = None,
        budget: int | None = None,
        culprit: str | None = None,
    ) -> None:
        super().__init__(message)
        self.floor, self.budget, self.culprit = floor, budget, culprit


class OutputInvalid(NexoError):
    """The model's answer does not fit the type that the prompt asked for.

    `errors` are pydantic's, without the input; `reply` is the turn's, whose answer is stored.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        errors: list[dict[str, Any]] | None = None,
        reply: Any = None,
    ) -> None:
        super().__init__(message)
        self.errors, self.reply = errors or [], reply


class ToolError(NexoError):
    """A tool could not do what it was asked; its text is the result the model reads."""


class ToolNotFound(ToolError):
    """The model called a tool that is not offered."""


class InvalidArguments(ToolError):
    """The model called a tool with arguments that do not fit its schema."""


class ToolDenied(ToolError):
    """The tool call was denied."""


class ProviderError(NexoError):
    """The model provider failed.

    `retryable` says whether the same request may succeed later, `retry_after` (seconds)
    when the provider asked for it, `status` is the HTTP status if there was one.
    """

    retryable = False

    def __init__(
        self,
        message: str | None = None,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.retry_after, self.status = retry_after, status


class RateLimited(ProviderError):
    """The provider limits how often it may be asked."""

    retryable = True


class AuthFailed(ProviderError):
    """The provider refused the key, or there is none."""


class ProviderTimeout(ProviderError):
    """The provider did not answer in time."""

    retryable = True


class ProviderUnavailable(ProviderError):
    """The provider could not be reached, or failed on its side."""

    retryable = True


class BadRequest(ProviderError):
    """The provider refused the request."""


class ContextOverflow(BadRequest):
    """The provider says that the request is larger than the model's context."""


ABORTS = (TurnCancelled, LimitExceeded, LeaseLost, StoreFailed)
# Celery raises these as plain Exceptions; known by name, so that Celery need not be there.
ABORT_NAMES = frozenset({"SoftTimeLimitExceeded", "TimeLimitExceeded"})
ABORT_PACKAGES = frozenset({"billiard", "celery"})


def is_abort(error: BaseException) -> bool:
    """Whether an error means that the turn must stop, rather than that one thing failed."""
    return isinstance(error, ABORTS) or not isinstance(error, Exception) or is_time_limit(error)


def is_time_limit(error: BaseException) -> bool:
    """Whether an error is that of a task whose time is over."""
    return any(
        cls.__name__ in ABORT_NAMES and cls.__module__.partition(".")[0] in ABORT_PACKAGES
        for cls in type(error).__mro__
    )


def brief(value: Any, limit: int = 80) -> str:
    """Show a value in an error's text, shortened."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
