"""The app's configuration: system checks, and the agents of every app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class NexoDjangoConfig(AppConfig):
    name = "nexo_django"
    label = "nexo_django"
    verbose_name = _("LLM agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, then import each app's `agents` module."""
        from nexo_django import checks  # noqa: F401

        autodiscover_modules("agents")
