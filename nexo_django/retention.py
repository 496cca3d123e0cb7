"""Deleting what is kept for a time only, in pieces, so that it may run beside the turns."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from nexo_django.stores.choice import default_store

# A file is written a moment before the prompt that it belongs to.
UNDER_WAY = timedelta(days=1)


def purge_attachments(now: datetime | None = None) -> int:
    """Delete attached files that a killed process left without a prompt, and count them.

    Only a database leaves any, none of the last day is touched, and the files of prompts go
    with their chats. Run it now and then.
    """
    purge = getattr(default_store(), "purge_attachments", None)
    before = (timezone.now() if now is None else now) - UNDER_WAY
    return 0 if purge is None else purge(before)


def purge_outputs(now: datetime | None = None, batch_size: int = 500) -> int:
    """Delete the whole outputs of tools that have expired, and give how many there were.

    They expire after NEXO["OUTPUT_RETENTION"]. Run it once a day or so; in the database it
    deletes `batch_size` of them in a transaction.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be at least 1.")
    return default_store().purge_outputs(timezone.now() if now is None else now, batch_size)
