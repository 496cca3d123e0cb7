"""When to compact: before any model call that would fill too much of the context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nexo_django import conf, events
from nexo_django.compaction.change import Change
from nexo_django.compaction.pipeline import (
    CompactionPipeline,
    Outcome,
    composed,
    essential,
    floor,
    ladder,
)
from nexo_django.compaction.progress import Progress
from nexo_django.completion.catalogue import facts
from nexo_django.exceptions import (
    ConfigurationError,
    ContextOverflow,
    ContextTooLarge,
    brief,
    is_abort,
)
from nexo_django.messages import ASSISTANT, NORMAL, Message, Usage
from nexo_django.pipeline import App, Env
from nexo_django.tokens import Approximate, Calibrated, Counter, exact, measure
from nexo_django.transcript import problem, sendable

# For a model of which nothing is known.
UNKNOWN_WINDOW = 128_000
MOST_RESERVE, USUAL_RESERVE = 20_000, 4096
# How much of the window must be added before another attempt, after one that fell short.
COOL_DOWN = 0.05


class DefaultCompactionPipeline:
    """Compact the messages before a model call when they fill `compact_at` of the window.

    They are brought down to `compact_to` of it. `window` is in tokens; by default it is the
    agent's or the model's context less room for the answer. `compactor` does the work:
    anything with `compact(messages, target=, events=, token_counter=)`. `compactors` is a
    list of layers in its place, and with neither it is the usual ladder, which asks
    `summariser`, a completion, last. A provider that finds a request too large gets a
    smaller one once; then it is ContextTooLarge.
    """

    def __init__(
        self,
        app: App,
        window: int | None = None,
        summariser: Any = None,
        compactor: Any = None,
        compactors: Iterable[Any] | None = None,
        keep_steps: int = 2,
        compact_at: float | None = None,
        compact_to: float | None = None,
        token_counter: Counter | None = None,
        tools: Iterable[Any] | None = None,
    ) -> None:
        self.app = app
        self.window = window
        self.compact_at = conf.get("COMPACT_AT") if compact_at is None else compact_at
        self.compact_to = conf.get("COMPACT_TO") if compact_to is None else compact_to
        self.token_counter = token_counter
        self.tools = None if tools is None else list(tools)
        self.compactor = _compactor(compactor, compactors, summariser, keep_steps)
        self._check()
        # From which message on the provider's reports are about the view as it is.
        self._since: int | None = None
        self._quiet = 0

    def __call__(self, env: Env) -> None:
        env.compactor = self.compactor
        if request := self._due(env):
            self._compact(request, "threshold")
        try:
            self.app(env)
        except ContextOverflow as overflow:
            self._again(env, overflow)

    def compact(
        self, env: Env, *, instructions: str | None = None, dry_run: bool = False
    ) -> Change | None:
        """Compact now, to `compact_to` of what is there; None when nothing could be given up.

        With `dry_run` it tells what would change: nothing is, and no model is asked.
        """
        request = Request(self, env).exactly()
        request.target = min(request.target, max(1, int(request.counted * self.compact_to)))
        return self._compact(request, "manual", instructions, dry_run)

    def since(self, env: Env) -> int:
        """Give the index from which messages are younger than the last compaction."""
        if self._since is None:
            known = getattr(env.turn, "view_since", None)
            self._since = _unknown(env.messages) if known is None else _after(env.messages, known)
        return self._since

    def _due(self, env: Env) -> Request | None:
        """Give what must be compacted: by the estimate, and then by the exact count too."""
        request = Request(self, env)
        if request.due and request.context > self._quiet:
            request = request.exactly()
            if request.due and request.context > self._quiet:
                return request
        return None

    def _again(self, env: Env, overflow: ContextOverflow) -> None:
        request = Request(self, env, overflown=True).exactly()
        if self._compact(request, "overflow") is None:
            raise request.too_large() from overflow
        try:
            self.app(env)
        except ContextOverflow as second:
            raise Request(self, env, overflown=True).exactly().too_large() from second

    def _compact(
        self,
        request: Request,
        trigger: str,
        instructions: str | None = None,
        dry_run: bool = False,
    ) -> Change | None:
        env = request.env
        progress = Progress(env, trigger, quiet=dry_run)
        try:
            progress.start(request.context, request.target, request.window)
            outcome = self._attempt(request, instructions, progress)
        except BaseException as error:
            progress.aborted(error)
            raise
        if outcome is None or not outcome.reached:
            after = request.context if outcome is None else outcome.after + request.overhead
            self._quiet = after + int(request.window * COOL_DOWN)
        if outcome is None or not outcome.changed:
            progress.record()
            return None
        change = Change(
            before=tuple(env.messages),
            view=tuple(outcome.messages),
            trigger=trigger,
            layers=outcome.layers,
            context=request.context,
            tokens_before=outcome.before,
            tokens_after=outcome.after,
            target=outcome.target,
            reached=outcome.reached,
            floor=outcome.floor,
            usage=outcome.usage,
            seconds=progress.seconds,
        )
        if not dry_run:
            self._apply(env, change)
        return change

    def _attempt(
        self, request: Request, instructions: str | None, progress: Progress
    ) -> Outcome | None:
        try:
            outcome = request.attempt(self.compactor, instructions, progress)
        except Exception as error:
            if is_abort(error):
                raise
            progress.declined(type(error).__name__, "The compactor failed.")
            return None
        wrong = problem(sendable(outcome.messages))
        if wrong is None or problem(sendable(request.env.messages)) is not None:
            progress.end(outcome)
            return outcome
        progress.declined("BadRequest", f"The compactor gave messages that can't be sent: {wrong}")
        return None

    def _apply(self, env: Env, change: Change) -> None:
        store = getattr(env.messages.recorder, "compacted", None)
        # Not through append: these messages are committed already.
        env.messages[:] = change.view if store is None else store(change)
        self._since = len(env.messages)
        env.metadata.pop("last_llm_usage", None)
        told = {
            "context": change.context,
            "before": change.tokens_before,
            "after": change.tokens_after,
            "target": change.target,
            "reached": change.reached,
            "floor": change.floor,
            "layers": list(change.layers),
            "trigger": change.trigger,
        }
        env.emit(events.COMPACTED, told, removed=list(change.removed), change=change)

    def _check(self) -> None:
        if not 0 < self.compact_to < self.compact_at <= 1:
            raise ConfigurationError(
                f"compact_at is {self.compact_at} and compact_to is {self.compact_to}; it must be"
                " 0 < compact_to < compact_at <= 1."
            )
        window = self.window
        if window is not None and (isinstance(window, bool) or not window > 0):
            raise ConfigurationError(f"window is {window!r}; give a number of tokens.")


class Request:
    """What the next model call would take, by one ruler, and what there is room for."""

    def __init__(
        self,
        middleware: DefaultCompactionPipeline,
        env: Env,
        *,
        overflown: bool = False,
        counter: Counter | None = None,
    ) -> None:
        self.env, self._middleware, self._overflown = env, middleware, overflown
        usual = middleware.token_counter or env.token_counter or Approximate()
        env.token_counter = usual
        given = counter or middleware.token_counter
        self.cheap = given is None and isinstance(usual, Approximate) and usual.usual
        counter = counter or usual
        tools = middleware.tools or env.tools or _offered(middleware.app, env)
        since = middleware.since(env)
        self.context, factor = measure(
            _reported(env), counter, tools=tools, model=env.model, since=since
        )
        self.counter = Calibrated(counter, factor) if factor > 1 else counter
        self.counted = self.counter.count(env.messages)
        # The schemas, and whatever else the provider counted that is no message.
        schemas = self.counter.count([], tools=tools) if tools else 0
        self.overhead = max(schemas, self.context - self.counted)
        window = middleware.window or _window(env)
        # It took less than was estimated, or there would have been no overflow.
        self.window = min(window, self.context * 9 // 10) if overflown else window
        self.due = self.context >= self.window * middleware.compact_at
        self.target = max(1, int(self.window * middleware.compact_to) - self.overhead)
        self.limit = max(1, self.window - self.overhead)

    def exactly(self) -> Request:
        """Count again as the provider does, where that is known; one ruler from here on."""
        counter = exact(self.env.model) if self.cheap else None
        if counter is None:
            return self
        return Request(self._middleware, self.env, overflown=self._overflown, counter=counter)

    def attempt(self, compactor: Any, instructions: str | None, progress: Progress) -> Outcome:
        """Let the compactor work on the messages."""
        messages, dry_run = list(self.env.messages), progress.quiet
        if isinstance(compactor, CompactionPipeline):
            return compactor.attempt(
                messages,
                self.target,
                events=progress,
                token_counter=self.counter,
                limit=self.limit,
                keep=None if dry_run else self.env.metadata.get("keep_output"),
                model=self.env.model,
                deadline=self.env.deadline,
                instructions=instructions,
                dry_run=dry_run,
                watch=None if dry_run else progress,
            )
        smaller = compactor.compact(
            messages, target=self.target, events=progress, token_counter=self.counter
        )
        return Outcome.of(compactor, messages, smaller, self.target, self.counter)

    def too_large(self) -> ContextTooLarge:
        """Make the error that says what can't be made to fit."""
        least = essential(self.env.messages)
        largest = max(least, key=lambda m: self.counter.count([m]), default=None)
        culprit = None
        if largest is not None:
            place = next(i for i, m in enumerate(self.env.messages) if m is largest)
            culprit = f"message {place} ({largest.role}), {self.counter.count([largest]):,} tokens"
        needed = floor(self.env.messages, self.counter) + self.overhead
        return ContextTooLarge(
            f"The messages do not fit the model's context: at least {needed:,} tokens must be"
            f" sent; the largest is {culprit}. Shorten it, or use a model with a larger context.",
            floor=needed,
            budget=self.window,
            culprit=culprit,
        )


def _compactor(given: Any, layers: Iterable[Any] | None, summariser: Any, keep_steps: int) -> Any:
    if given is not None and not hasattr(given, "compact"):
        raise ConfigurationError(
            f"compactor is {brief(given)}; it needs a method compact(messages, target=,"
            " events=, token_counter=), as a CompactionPipeline has."
        )
    if given is not None:
        return given
    try:
        return ladder(summariser, keep_steps) if layers is None else composed(layers)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from error


def _window(env: Env) -> int:
    known = facts(env.model) if env.model else None
    declared = getattr(env.agent, "context_window", None)
    window = declared or (known.context_window if known else None) or UNKNOWN_WINDOW
    output = (known.max_output_tokens if known else None) or USUAL_RESERVE
    return max(1, int(window) - min(output, MOST_RESERVE, int(window) // 4))


def _after(messages: Sequence[Message], position: int) -> int:
    """Give the index behind the last message that is not at a later position."""
    places = reversed(range(len(messages)))
    return next((i + 1 for i in places if (messages[i].position or 0) <= position), 0)


def _unknown(messages: Sequence[Message]) -> int:
    """Believe no report where an earlier turn compacted, and when is not known."""
    return 0 if all(m.kind == NORMAL and m.mark is None for m in messages) else len(messages)


def _reported(env: Env) -> list[Message]:
    """Give the messages, the last answer with the usage that the env has of it."""
    messages, usage = list(env.messages), env.metadata.get("last_llm_usage")
    places = reversed(range(len(messages)))
    last = next((i for i in places if messages[i].role == ASSISTANT), None)
    if last is not None and messages[last].usage is None and isinstance(usage, Usage):
        messages[last] = messages[last].replace(usage=usage)
    return messages


def _offered(app: Any, env: Env) -> list[Any]:
    """Find the tools that a layer below will offer: on the first pass it has not run yet."""
    while app is not None:
        if offer := getattr(app, "offer", None):
            return list(offer(env))
        if tools := getattr(app, "tools", None):
            return list(tools)
        app = getattr(app, "app", None)
    return []
