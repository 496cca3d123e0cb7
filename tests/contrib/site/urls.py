"""The site's pages, and who may use which chat."""

from __future__ import annotations

import os
from typing import Any

from django.contrib.auth import get_user_model, login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.urls import include, path


class Access:
    """Every user has chats of their own, by any name."""

    def __call__(self, request: HttpRequest, agent_name: str, conversation: str) -> str | None:
        if agent_name == "Secret" or conversation == "forbidden":
            return None
        return f"user-{request.user.pk}/{conversation}"

    def conversations(self, request: HttpRequest, agent_name: str) -> list[str]:
        """Give the user's conversations."""
        return [] if agent_name == "Secret" else ["main", "other"]


access = Access()


def enter(request: HttpRequest, name: str) -> HttpResponse:
    """Log somebody in, who is made if need be, and say the CSRF token."""
    user, _ = get_user_model().objects.get_or_create(username=name)
    login(request, user, "django.contrib.auth.backends.ModelBackend")
    return JsonResponse({"token": get_token(request), "pid": os.getpid()})


if os.environ.get("NEXO_TEST_BACKGROUND") == "celery" and "NEXO_TEST_QUEUE" in os.environ:
    # Whoever queues needs to know the broker; a worker does already.
    from tests.contrib import celery_worker

    celery_worker.app.set_default()

urlpatterns: list[Any] = [
    path("enter/<str:name>", enter),
    path("assistant/", include("nexo_django.contrib.urls")),
]
