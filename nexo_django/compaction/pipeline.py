"""A compactor made of middleware: the order of its layers is the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from nexo_django.compaction.base import (
    App,
    Applied,
    Compaction,
    Keep,
    Sink,
    Strategy,
    Watch,
    at_least,
)
from nexo_django.compaction.clip import clip
from nexo_django.compaction.sliding_window import SlidingWindow
from nexo_django.compaction.summarize import Summarize
from nexo_django.compaction.tool_results import ToolResults
from nexo_django.messages import Message, Usage
from nexo_django.pipeline import Pipeline
from nexo_django.tokens import Approximate, Counter
from nexo_django.transcript import last_prompt, steps, system_end


@dataclass(frozen=True)
class Outcome:
    """What a compaction came to; the counts are of the messages alone.

    `floor` is the least that could be left: system, the task's prompt, its last step.
    """

    messages: list[Message]
    before: int
    after: int
    target: int
    floor: int
    applied: tuple[Applied, ...]
    failures: tuple[Exception, ...]
    usage: Usage

    @classmethod
    def of(
        cls,
        compactor: Any,
        messages: list[Message],
        smaller: list[Message] | None,
        target: int,
        counter: Counter,
    ) -> Outcome:
        """Tell what a compactor of another make came to, which gives a list or None."""
        before = counter.count(messages)
        kept = messages if smaller is None else list(smaller)
        after = counter.count(kept)
        changed = after < before
        applied = (Applied(type(compactor).__name__, before, after),) if changed else ()
        kept, after = (kept, after) if changed else (messages, before)
        least = floor(kept, counter)
        return cls(kept, before, after, target, least, applied, (), Usage())

    @property
    def reached(self) -> bool:
        """Whether what is left fits the target."""
        return self.after <= self.target

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that gave something up, in order."""
        return tuple(done.layer for done in self.applied)

    @property
    def changed(self) -> bool:
        """Whether anything was given up."""
        return bool(self.applied)


class CompactionPipeline:
    """A stack of layers, the cheapest outermost, around the one that asks a model.

    A layer that reached the target does not call the next. Without a terminal app, or with
    one that does nothing, no model is ever asked.
    """

    def __init__(self) -> None:
        self.pipeline = Pipeline()

    def use(self, cls: Callable[..., Any], *args: Any, **options: Any) -> Self:
        """Add a layer inside those already there."""
        self.pipeline.use(cls, *args, **options)
        return self

    def run(self, app: Callable[..., Any]) -> Self:
        """Set the terminal app: `Summarize(completion)`, or one that never pays."""
        self.pipeline.run(app)
        return self

    def compact(
        self,
        messages: Sequence[Message],
        target: int,
        events: Sink | None = None,
        token_counter: Counter | None = None,
    ) -> list[Message] | None:
        """Give a smaller list, or None when nothing was given up; the input stays as it is."""
        done = self.attempt(messages, target, events=events, token_counter=token_counter)
        return done.messages if done.changed else None

    def attempt(
        self,
        messages: Sequence[Message],
        target: int,
        *,
        events: Sink | None = None,
        token_counter: Counter | None = None,
        limit: int | None = None,
        keep: Keep | None = None,
        model: str | None = None,
        deadline: float | None = None,
        instructions: str | None = None,
        dry_run: bool = False,
        watch: Watch | None = None,
    ) -> Outcome:
        """Compact a list and tell how that went.

        `limit` is what fits at most: while it is kept, nothing is dropped that could not be
        summarised, and results are cut short only to keep it. A dry run asks no model: a
        line stands for the summary.
        """
        env = Compaction(
            conversation=list(messages),
            target=target,
            token_counter=token_counter or Approximate(),
            limit=limit,
            events=events,
            keep=keep,
            model=model,
            deadline=deadline,
            instructions=instructions,
            dry_run=dry_run,
            watch=watch,
        )
        before = env.count(env.conversation)
        # A pipeline composes whatever its layers take; these take a Compaction.
        stack: Any = self.pipeline
        stack.build(self.pipeline.app or _nothing)(env)
        clip(env)
        return Outcome(
            messages=env.conversation,
            before=before,
            after=env.count(env.conversation),
            target=target,
            floor=floor(env.conversation, env.token_counter),
            applied=tuple(env.applied),
            failures=tuple(env.failures),
            usage=env.usage,
        )


def ladder(summariser: Any = None, keep_steps: int = 2) -> CompactionPipeline:
    """Give the usual compactor: results, then turns, then a summary if there is a summariser."""
    at_least("keep_steps", keep_steps, 1)
    usual = CompactionPipeline().use(ToolResults, keep_steps=1)
    usual.use(SlidingWindow, keep_steps=keep_steps)
    if summariser is None:
        return usual
    if isinstance(summariser, Summarize):
        return usual.run(summariser)
    return usual.run(Summarize(summariser, keep_steps=keep_steps))


def composed(compactors: Iterable[Any]) -> CompactionPipeline:
    """Make a compactor from a list: layers or their classes, and at the end any terminal app."""
    app: App = _nothing
    for index, item in enumerate(reversed(list(compactors))):
        if isinstance(item, Strategy):
            layer = copy.copy(item)
            layer.app = app
            app = layer
        elif isinstance(item, type) and issubclass(item, Strategy):
            app = item(app)  # type: ignore[call-arg]
        elif callable(item) and index == 0:
            app = item
        else:
            raise TypeError(f"compactors takes layers, and last a callable, not {item!r}.")
    return CompactionPipeline().run(app)


def floor(messages: Sequence[Message], counter: Counter) -> int:
    """Count what must be sent in any case: the system's text, the task's prompt, its last step."""
    return counter.count(essential(messages))


def essential(messages: Sequence[Message]) -> list[Message]:
    """Give the messages that can't be given up."""
    start, anchor = system_end(messages), last_prompt(messages)
    task = start if anchor is None else anchor + 1
    last = steps(messages, task)[-1:]
    prompt = [] if anchor is None else [messages[anchor]]
    return [*messages[:start], *prompt, *(messages[i] for step in last for i in step)]


def _nothing(env: Compaction) -> None:
    """Do nothing: the policy that never spends a call."""
