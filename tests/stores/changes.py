"""A compaction as the compaction layer tells a store of it."""

from __future__ import annotations

from collections.abc import Sequence

from nexo_django.compaction.change import Change
from nexo_django.messages import Message, Usage


def change(before: Sequence[Message], *view: Message, usage: Usage | None = None) -> Change:
    """Make a compaction of a view into another."""
    return Change(
        before=tuple(before),
        view=view,
        trigger="size",
        layers=("SlidingWindow",),
        context=100,
        tokens_before=90,
        tokens_after=10,
        target=40,
        reached=True,
        floor=5,
        usage=usage or Usage(),
    )
