"""What goes down a compaction stack, and what its layers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nexo_django import events as names
from nexo_django.exceptions import NexoError
from nexo_django.messages import Message, MessageLog, ToolCall, Usage
from nexo_django.tokens import Counter

# Stores the text of a result that is taken out of the view; gives the id to read it by.
Keep = Callable[[str, ToolCall], str | None]
App = Callable[["Compaction"], Any]


class Watch(Protocol):
    """What a compaction tells while it runs, and what may stop it."""

    stream: bool

    def layer(self, name: str) -> None:
        """Hear that a layer begins its work."""

    def spend(self, usage: Usage) -> None:
        """Hear what a call of a model used, whatever comes of the compaction."""

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn must not go on."""


class Sink(Protocol):
    """Where a compaction tells what happens."""

    def emit(self, type: str, payload: dict[str, Any]) -> object:
        """Tell of one event."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What one layer achieved, in tokens of the whole conversation."""

    layer: str
    before: int
    after: int


@dataclass
class Compaction:
    """The env of a compaction stack.

    Layers put a smaller list in the place of `conversation`; nobody changes the list itself.
    `messages` is the prompt channel of the model call, as everywhere. `dropped` is what was
    taken out in this run and is in no summary yet, `original` the conversation with it.
    `limit` is what the model takes at most: as long as that is kept, a summary can wait and
    nothing need be lost.
    """

    conversation: list[Message]
    target: int
    token_counter: Counter
    limit: int | None = None
    events: Sink | None = None
    keep: Keep | None = None
    model: str | None = None
    deadline: float | None = None
    instructions: str | None = None
    dry_run: bool = False
    watch: Watch | None = None
    applied: list[Applied] = field(default_factory=list)
    dropped: list[Message] = field(default_factory=list)
    original: list[Message] | None = None
    failures: list[Exception] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    messages: MessageLog = field(default_factory=MessageLog)
    metadata: dict[str, Any] = field(default_factory=dict)
    _sources: dict[int, tuple[Message, Message]] = field(default_factory=dict, repr=False)
    _sizes: dict[int, tuple[Message, int]] = field(default_factory=dict, repr=False)

    @property
    def over(self) -> bool:
        """Whether the conversation is larger than the target."""
        return self.count(self.conversation) > self.target

    def count(self, messages: Sequence[Message]) -> int:
        """Count messages with the one ruler of this run."""
        return self.token_counter.count(messages)

    def size(self, message: Message) -> int:
        """Count one message; each is counted once in a run."""
        if id(message) not in self._sizes:
            # The message is kept with its size, so that its id stays its own.
            self._sizes[id(message)] = (message, self.count([message]))
        return self._sizes[id(message)][1]

    def sizes(self, messages: Sequence[Message]) -> list[int]:
        """Count messages one by one."""
        return [self.size(message) for message in messages]

    def take(self, layer: str, smaller: list[Message]) -> bool:
        """Put a list in the conversation's place if it is smaller."""
        before, after = self.count(self.conversation), self.count(smaller)
        if after >= before:
            return False
        self.conversation = smaller
        self.applied.append(Applied(layer, before, after))
        return True

    def rewritten(self, new: Message, old: Message) -> None:
        """Note what a message of this run stands for."""
        self._sources[id(new)] = (new, old)

    def source(self, message: Message) -> Message:
        """Give what a message said before this run."""
        return self._sources.get(id(message), (message, message))[1]

    def undrop(self) -> bool:
        """Take back what was dropped if there is room for it, as no summary could be had."""
        original = self.conversation if self.original is None else self.original
        size = self.count(original)
        if self.limit is None or size > self.limit:
            return False
        self.conversation, self.dropped = original, []
        self.applied = [done for done in self.applied if done.after >= size]
        return True

    def begin(self, layer: str) -> None:
        """Tell that a layer begins its work."""
        if self.watch is not None:
            self.watch.layer(layer)

    def spend(self, usage: Usage) -> None:
        """Add what a call of a model used."""
        self.usage += usage
        if self.watch is not None:
            self.watch.spend(usage)

    def failed(self, error: Exception) -> None:
        """Note that a layer could not do its work; the others go on."""
        self.failures.append(error)
        if self.events is not None:
            # Only our own errors' texts are known to hold no content.
            text = str(error) if isinstance(error, NexoError) else "A compaction layer failed."
            told = {"error": type(error).__name__, "message": text}
            self.events.emit(names.ERROR, told)


class Strategy:
    """A layer that makes the conversation smaller while it is over the target.

    It calls the next layer only if the conversation is still too large, or if something was
    dropped that a layer below could keep in a summary. Made with an app it is a middleware;
    without one it waits for a list of compactors to be composed.
    """

    name = "strategy"
    app: App | None = None

    def __call__(self, env: Compaction) -> None:
        if env.over:
            env.begin(self.name)
            if (smaller := self.rewrite(env)) is not None:
                env.take(self.name, smaller)
        if self.app is not None and (env.over or (env.dropped and self.paid is not None)):
            self.app(env)

    def rewrite(self, env: Compaction) -> list[Message] | None:
        """Give a smaller list, or None when there is nothing to give up."""
        raise NotImplementedError

    @property
    def paid(self) -> Paid | None:
        """The layer that asks a model: this one or the next below."""
        return getattr(self.app, "paid", None)


class Paid(Protocol):
    """A layer that asks a model, as those above see it."""

    def room(self, target: int) -> int:
        """Give how many tokens its summary will take."""


def at_least(name: str, value: int, least: int) -> int:
    """Refuse a number that is too small for an option."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} up, not {value!r}.")
    return value
