"""A real Celery worker's app: one task, which is acknowledged when it is over."""

from __future__ import annotations

import os

from celery import Celery

BROKER = os.environ["NEXO_TEST_BROKER"]

app = Celery("durability", broker=BROKER)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=os.environ["NEXO_TEST_QUEUE"],
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # How long Redis waits before it gives a task to another worker; RabbitMQ has no need of it.
    broker_transport_options={"visibility_timeout": 4} if BROKER.startswith("redis") else {},
)


@app.task(name="durability.turn")
def turn(instance: str, name: str, shape: str) -> None:
    """Run a turn under the task's own name as its key."""
    import django

    django.setup()
    from tests.durability import workers

    workers.run(instance, name, shape, key=f"key-{name}")
