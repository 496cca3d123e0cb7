"""Turns in the background: `celery -A project.celery worker`, with the `celery` extra installed."""

from __future__ import annotations

import os

from celery import Celery

from nexo_django.exceptions import SessionBusy

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")


# A key makes a delivery that is repeated the same turn; acks_late makes a killed worker's repeat.
@app.task(
    acks_late=True, reject_on_worker_lost=True, autoretry_for=(SessionBusy,), retry_backoff=True
)
def prompt(agent_name: str, instance_id: str, text: str, key: str) -> str:
    """Run one turn and give the reply's text."""
    from nexo_django import Session

    with Session.resume(agent_name, instance_id) as session:
        return session.prompt(text, key=key).content
