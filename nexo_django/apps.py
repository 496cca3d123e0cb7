"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NexoDjangoConfig(AppConfig):
    name = "nexo_django"
    label = "nexo_django"
    verbose_name = _("LLM agents")
    default_auto_field = "django.db.models.BigAutoField"
