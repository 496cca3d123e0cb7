"""The second layer: the oldest turns go, then the oldest steps of the task."""

from __future__ import annotations

from nexo_django.compaction.base import App, Compaction, Strategy, at_least
from nexo_django.compaction.selection import NOTE_MARK, in_front, select
from nexo_django.messages import NOTICE, SUMMARY, USER, Message

NOTE = Message(
    USER,
    "[Earlier messages of this conversation are no longer shown, to save context.]",
    kind=NOTICE,
    mark=NOTE_MARK,
)


class SlidingWindow(Strategy):
    """Drop the oldest turns, then the oldest steps of the task, and say so.

    The system's text, the task's prompt, earlier summaries and the newest `keep_steps`
    steps stay. Above a layer that asks a model, what is dropped waits for its summary.
    """

    name = NOTE_MARK

    def __init__(self, app: App | None = None, keep_steps: int = 1) -> None:
        self.app = app
        self.keep_steps = at_least("keep_steps", keep_steps, 1)

    def rewrite(self, env: Compaction) -> list[Message] | None:
        """Give the list without what was dropped, with a note in its place."""
        paid = self.paid
        room = env.size(NOTE) if paid is None else paid.room(env.target)
        chosen = select(env, self.keep_steps, room, merging=paid is not None)
        if not chosen.dropped:
            return None
        # A summary says already that earlier messages are gone.
        told = any(m.kind == SUMMARY for m in chosen.kept)
        smaller = chosen.kept if told else in_front(chosen.kept, NOTE)
        if env.count(smaller) >= env.count(env.conversation):
            return None
        env.original, env.dropped = env.conversation, chosen.dropped
        return smaller
