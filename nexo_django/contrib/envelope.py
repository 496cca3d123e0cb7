"""Errors as JSON: a code, a text that tells nothing of what is stored, and when to try again."""

from __future__ import annotations

import logging
import math
from typing import Any

from django.http import JsonResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from nexo_django import exceptions

logger = logging.getLogger(__name__)

# By the class of an error, the nearest in its __mro__ first.
CODES: dict[str, tuple[int, str]] = {
    "Refused": (400, "bad_request"),
    "PermissionDenied": (403, "forbidden"),
    "Http404": (404, "not_found"),
    "AgentNotRegistered": (404, "not_found"),
    "SessionNotFound": (404, "not_found"),
    "SessionBusy": (409, "busy"),
    "KeyConflict": (409, "key_conflict"),
    "NothingToContinue": (409, "nothing_to_continue"),
    "DecisionRefused": (409, "not_pending"),
    "LeaseLost": (409, "lease_lost"),
    "RequestDataTooBig": (413, "too_large"),
    "SuspiciousOperation": (400, "bad_request"),
    "ContextTooLarge": (413, "context_too_large"),
    "ContextOverflow": (413, "context_too_large"),
    "LimitExceeded": (422, "limit_exceeded"),
    "RateLimited": (429, "rate_limited"),
    "ConfigurationError": (500, "configuration_error"),
    "ImproperlyConfigured": (500, "configuration_error"),
    "InsideTransaction": (500, "configuration_error"),
    "NotSupported": (501, "not_supported"),
    "ProviderTimeout": (504, "provider_timeout"),
    "ProviderUnavailable": (503, "provider_unavailable"),
    "ProviderError": (502, "provider_error"),
    "StoreFailed": (503, "store_failed"),
}
INTERNAL = (500, "internal_error")

TEXTS = {
    "bad_request": _("The request can't be read."),
    "login_required": _("Log in first."),
    "forbidden": _("You may not do that."),
    "not_found": _("There is no such conversation."),
    "method_not_allowed": _("This address does not take that method."),
    "busy": _("Another turn of this conversation is running."),
    "key_conflict": _("The key was used before with another prompt."),
    "nothing_to_continue": _("There is nothing to continue."),
    "not_pending": _("Nothing waits for that decision any more."),
    "lease_lost": _("Another process took this conversation over."),
    "too_large": _("That is larger than this site takes."),
    "context_too_large": _("This conversation is larger than the model can read."),
    "unsupported_media_type": _("Send JSON, with the content type application/json."),
    "limit_exceeded": _("The turn reached its limit."),
    "rate_limited": _("The model is asked too often now. Try again later."),
    "configuration_error": _("This site is not configured correctly."),
    "internal_error": _("Something went wrong."),
    "not_supported": _("This is not supported here."),
    "provider_error": _("The model could not answer."),
    "provider_unavailable": _("The model can't be reached now. Try again later."),
    "provider_timeout": _("The model did not answer in time. Try again later."),
    "store_failed": _("The conversation could not be stored or read. Try again later."),
    "not_begun": _("The turn has not begun yet. It is still in the queue."),
    "interrupted": _("The turn was interrupted. It can be continued."),
}


class Refused(Exception):
    """What a client sent can't be right; the text says it to the client."""

    def __init__(self, message: str = "", code: str = "bad_request", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status


def told(code: str, message: str = "", retry_after: float | None = None) -> dict[str, Any]:
    """Give an error as it is sent."""
    error: dict[str, Any] = {"code": code, "message": message or gettext(TEXTS[code])}
    if retry_after is not None:
        error["retry_after"] = max(1, math.ceil(retry_after))
    return error


def described(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Give the status and the description of an error that was raised."""
    if isinstance(error, Refused):
        return error.status, told(error.code, error.message)
    status, code = _nearest(type(error))
    return status, told(code, retry_after=getattr(error, "retry_after", None))


def stored(name: str) -> dict[str, Any]:
    """Describe an error of which a turn's row has kept the class's name."""
    cls = getattr(exceptions, name, None)
    return told(_nearest(cls)[1] if isinstance(cls, type) else INTERNAL[1])


def response(error: BaseException) -> JsonResponse:
    """Answer with an error; what is ours to mend is logged."""
    status, description = described(error)
    if status >= 500:
        logger.error("code=%s", description["code"], exc_info=error)
    return _response(status, description)


def failure(name: str) -> JsonResponse:
    """Answer with the error of which a turn's row has kept the class's name."""
    cls = getattr(exceptions, name, None)
    status, code = _nearest(cls) if isinstance(cls, type) else INTERNAL
    return _response(status, told(code if name else "interrupted"))


def refusal(status: int, code: str) -> JsonResponse:
    """Answer with an error of that code."""
    return _response(status, told(code))


def _response(status: int, description: dict[str, Any]) -> JsonResponse:
    answer = JsonResponse({"error": description}, status=status)
    if "retry_after" in description:
        answer["Retry-After"] = str(description["retry_after"])
    return answer


def _nearest(cls: type) -> tuple[int, str]:
    return next((CODES[base.__name__] for base in cls.__mro__ if base.__name__ in CODES), INTERNAL)
