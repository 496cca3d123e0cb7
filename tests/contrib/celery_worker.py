"""The Celery app of the tests: in a worker's process by its module, in the tests' by `make`."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import nexo_django.contrib.celery
import tests.contrib.agents  # noqa: F401

# How long a worker must have had a task before Redis gives it away.
VISIBLE = 1.0


def make(broker: str, queue: str, **config: Any) -> Celery:
    """Make an app with a queue of its own."""
    app = Celery("contrib-tests", broker=broker)
    redis = {
        "visibility_timeout": VISIBLE,
        "unacked_mutex_expire": 5,
        "unacked_key": f"{queue}.unacked",
        "unacked_index_key": f"{queue}.unacked_index",
        "unacked_mutex_key": f"{queue}.unacked_mutex",
    }
    app.conf.update(
        task_ignore_result=True,
        task_default_queue=queue,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options=redis if broker.startswith("redis") else {"confirm_publish": True},
        **config,
    )
    return app


if "NEXO_TEST_QUEUE" in os.environ:
    app = make(os.environ["NEXO_TEST_BROKER"], os.environ["NEXO_TEST_QUEUE"])
    nexo_django.contrib.celery.TurnTask.max_retries = 6
