"""The project's Celery app: `celery -A project worker`, with the `celery` extra installed."""

from __future__ import annotations

import os

from celery import Celery

# Gives the app the tasks that run turns.
import nexo_django.contrib.celery  # noqa: F401

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
