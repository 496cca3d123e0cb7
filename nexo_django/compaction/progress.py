"""What is told while a compaction runs, and what it used if nothing comes of it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nexo_django import events
from nexo_django.compaction.change import Spent
from nexo_django.messages import Usage
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_usage

if TYPE_CHECKING:
    from nexo_django.compaction.pipeline import Outcome


class Progress:
    """One attempt to compact, as hooks and the store hear of it; a quiet one tells no hook."""

    def __init__(self, env: Env, trigger: str, *, quiet: bool = False) -> None:
        self.env, self.trigger, self.quiet = env, trigger, quiet
        self.stream = env.stream
        self.usage = Usage()
        self.target = 0
        self.error = ""
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self._started

    def start(self, context: int, target: int, window: int) -> None:
        """Tell that it begins."""
        self.target = target
        told = {"context": context, "target": target, "window": window}
        self._hook(events.COMPACT_START, {"trigger": self.trigger, **told})

    def layer(self, name: str) -> None:
        """Tell that a layer begins its work."""
        self._hook(events.COMPACT_LAYER, {"trigger": self.trigger, "layer": name})

    def spend(self, usage: Usage) -> None:
        """Add what a call of a model used."""
        self.usage += usage

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn must not go on."""
        self.env.checkpoint(now=now)

    def emit(self, type: str, payload: dict[str, Any]) -> None:
        """Hand an event of the compactor on to the turn's listeners and hooks."""
        self.env.emit(type, payload)

    def declined(self, error: str, message: str) -> None:
        """Tell that nothing was compacted; the turn goes on as it is."""
        self.env.emit(events.ERROR, {"error": error, "message": message})
        self.failed(error)

    def failed(self, error: str) -> None:
        """Tell that it failed, or a layer of it, by the error's class."""
        self.error = error
        self._hook(events.COMPACT_FAILURE, {"trigger": self.trigger, "error": error})

    def end(self, outcome: Outcome) -> None:
        """Tell what came of it."""
        for failure in outcome.failures:
            self.failed(type(failure).__name__)
        told = {"before": outcome.before, "after": outcome.after, "reached": outcome.reached}
        ended = {**told, "layers": list(outcome.layers), "seconds": round(self.seconds, 3)}
        self._hook(events.COMPACT_END, {"trigger": self.trigger, **ended})

    def aborted(self, error: BaseException) -> None:
        """Keep what was used, and tell, when the turn ends here; the first error goes on."""
        with suppress(Exception):
            self.error = type(error).__name__
            self.record()
        with suppress(Exception):
            self.failed(type(error).__name__)

    def record(self) -> None:
        """Give the store what was used for nothing."""
        store = getattr(self.env.messages.recorder, "compaction_failed", None)
        if store is None or not (self.usage.total or self.usage.cost):
            return
        store(
            Spent(
                trigger=self.trigger,
                error=self.error,
                target=self.target,
                usage=clean_usage(self.usage),
                seconds=self.seconds,
            )
        )

    def _hook(self, name: str, payload: dict[str, Any]) -> None:
        if not self.quiet:
            self.env.hook(name, payload)
