"""Deleting what is kept for a time only, in pieces, so that it may run beside the turns."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from nexo_django.stores.choice import default_store


def purge_outputs(now: datetime | None = None, batch_size: int = 500) -> int:
    """Delete the whole outputs of tools that have expired, and give how many there were.

    They expire after NEXO["OUTPUT_RETENTION"]. Run it once a day or so; in the database it
    deletes `batch_size` of them in a transaction.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be at least 1.")
    return default_store().purge_outputs(timezone.now() if now is None else now, batch_size)
