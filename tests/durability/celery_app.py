"""A real Celery worker's app: one task, which is acknowledged when it is over."""

from __future__ import annotations

import os

from celery import Celery

from tests.durability.redelivery import VISIBLE

BROKER, QUEUE = os.environ["NEXO_TEST_BROKER"], os.environ["NEXO_TEST_QUEUE"]

# Redis gives a task to another worker that starts VISIBLE seconds later; one that runs already
# looks every 100 seconds only. The second value is how long a worker that dies while it looks
# keeps others from looking. With keys of its own no other test meddles.
REDIS = {
    "visibility_timeout": VISIBLE,
    "unacked_mutex_expire": 5,
    "unacked_key": f"{QUEUE}.unacked",
    "unacked_index_key": f"{QUEUE}.unacked_index",
    "unacked_mutex_key": f"{QUEUE}.unacked_mutex",
}

app = Celery("durability", broker=BROKER)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options=REDIS if BROKER.startswith("redis") else {},
)


@app.task(name="durability.turn")
def turn(instance: str, name: str, shape: str) -> None:
    """Run a turn under the task's own name as its key."""
    import django

    django.setup()
    from tests.durability import workers

    workers.run(instance, name, shape, key=f"key-{name}")
