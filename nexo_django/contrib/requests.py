"""What the views share: who is asking, what a body says, and errors as answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.utils.cache import patch_cache_control
from django.views.decorators.csrf import csrf_protect

from nexo_django.contrib import access, envelope
from nexo_django.contrib.envelope import Refused

View = Callable[..., HttpResponseBase]


def endpoint(method: str) -> Callable[[View], View]:
    """Make a view that takes one method, from users who are logged in, with the CSRF token.

    What it raises becomes an answer. No transaction is open around it: a turn can't run in
    one, and a stream would hold it.
    """

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                answer = _refused(request, method) or view(request, *args, **kwargs)
            except Exception as error:
                answer = envelope.response(error)
            patch_cache_control(answer, no_cache=True, no_store=True, private=True)
            return answer

        checked: Any = transaction.non_atomic_requests(csrf_protect(guarded))
        return checked  # type: ignore[no-any-return]

    return decorate


def body(request: HttpRequest, **taken: tuple[type, ...]) -> dict[str, Any]:
    """Give the values of a JSON object or a form, each of a type that is taken; or raise Refused."""
    if request.content_type == "multipart/form-data":
        given: Any = {name: _form_value(value) for name, value in request.POST.items()}
        given.pop("csrfmiddlewaretoken", None)
    else:
        given = _json(request)
    for name, value in given.items():
        if name not in taken:
            raise Refused(
                f"{name[:40]!r} is not taken here; what is: {', '.join(taken) or 'none'}."
            )
        if value is not None and not _is(value, taken[name]):
            raise Refused(f"{name!r} has the wrong type.")
    return {name: value for name, value in given.items() if value is not None}


def number(given: Mapping[str, str], name: str, default: int | None, most: int) -> int | None:
    """Give a whole number of the query string, from 1 up; or raise Refused."""
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) > 0):
        raise Refused(f"{name!r} must be a whole number, from 1 up.")
    return min(int(text), most)


def _refused(request: HttpRequest, method: str) -> HttpResponseBase | None:
    # Before anything is told of what there is: a site without the hook lets nobody in.
    access.hook()
    access.check_store()
    if not request.user.is_authenticated:
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            return redirect_to_login(request.get_full_path())
        return envelope.refusal(401, "login_required")
    if request.method != method:
        answer = envelope.refusal(405, "method_not_allowed")
        answer["Allow"] = method
        return answer
    return None


def _json(request: HttpRequest) -> Any:
    if not request.body:
        return {}
    if request.content_type != "application/json":
        raise Refused("", "unsupported_media_type", 415)
    try:
        given = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Refused("The body is no JSON.") from None
    if not isinstance(given, dict):
        raise Refused("The body is no JSON object.")
    return given


def _form_value(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value)


def _is(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))
