"""Composition only: a stack of middleware around a terminal app, and the env that goes down it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from nexo_django import events as names
from nexo_django.events import Events, OnEvent
from nexo_django.exceptions import LimitExceeded
from nexo_django.messages import ASSISTANT, USER, Message, MessageLog

App = Callable[["Env"], Any]
Hook = Callable[..., Any]
Matcher = str | re.Pattern[str] | Callable[[str], Any]


@dataclass
class Env:
    """What one turn carries down the stack and back."""

    messages: MessageLog = field(default_factory=MessageLog)
    events: Events = field(default_factory=Events)
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] = field(default_factory=list)
    model: str | None = None
    current_iteration: int = 1
    should_exit: bool = False
    stream: bool = False
    compactor: Any = None
    token_counter: Any = None
    # Set by a session: its agent, and its open turn, which SessionLog takes the messages from.
    agent: Any = None
    turn: Any = None
    # Where the built-in tools read, write and run; opened from the agent's when it is first used.
    sandbox: Any = None
    # Model calls this turn may make; None leaves it to MaxIterations' own limit.
    max_turns: int | None = None
    # On time.monotonic(); nothing in the turn may outlast it.
    deadline: float | None = None
    hooks: Mapping[str, list[Hook]] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        # A layer may put another list in place; what is appended to it is committed as well.
        if name == "messages" and not isinstance(value, MessageLog):
            before = self.__dict__.get("messages")
            value = MessageLog(value)
            value.recorder = before.recorder if before is not None else None
        super().__setattr__(name, value)

    @property
    def reply(self) -> Message | None:
        """The last message if the model wrote it."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == ASSISTANT else None

    @property
    def has_reply(self) -> bool:
        """Whether the last message is the model's."""
        return self.reply is not None

    def emit(self, type: str, payload: dict[str, Any], **details: Any) -> None:
        """Tell the listeners of the turn, then the hooks of the pipeline.

        `details` are for hooks only: what is not JSON-safe, such as removed messages.
        """
        self.events.emit(type, payload)
        self.hook(type, {**payload, **details} if details else payload)

    def hook(self, name: str, payload: Any) -> None:
        """Call what `Pipeline.on(name)` subscribed, in order, with `(env, payload)`."""
        for hook in self.hooks.get(name, ()):
            hook(self, payload)

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn must not go on; see Recorder.checkpoint."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise LimitExceeded("The turn passed its deadline (TURN_DEADLINE).")
        if self.messages.recorder is not None:
            self.messages.recorder.checkpoint(now=now)


@dataclass(frozen=True)
class Layer:
    """A middleware class with its arguments, made when the stack is built."""

    cls: Callable[..., App]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, app: App) -> App:
        return self.cls(app, *self.args, **self.options)

    def __repr__(self) -> str:
        values = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.options.items()]
        return f"{getattr(self.cls, '__name__', self.cls)}({', '.join(values)})"


class Pipeline:
    """A middleware stack; builder and runnable are one object.

    A middleware is a class built with `(app, *args, **options)` and called with `(env)`;
    the terminal app is any callable that appends the model's message to `env.messages`.
    The chain is built anew for each start, so layers may keep state for a turn.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.app: App | None = None
        self.hooks: dict[str, list[Hook]] = {}
        self.commands: list[tuple[Callable[[str], Any], App]] = []

    def use(self, cls: Callable[..., App], *args: Any, **options: Any) -> Self:
        """Add a layer inside those already there."""
        if not callable(cls):
            raise TypeError(f"use() takes a middleware class, not {cls!r}; its options follow it.")
        self.layers.append(Layer(cls, args, options))
        return self

    def run(self, app: App) -> Self:
        """Set the terminal app, which calls the model once and appends its message."""
        if not callable(app):
            raise TypeError(f"run() takes a callable that takes the env, not {app!r}.")
        self.app = app
        return self

    def on(self, event: str, hook: Hook) -> Self:
        """Call `hook(env, payload)` at every such event or hook point, after earlier ones."""
        if event not in (*names.EVENTS, *names.HOOKS):
            known = ", ".join((*names.EVENTS, *names.HOOKS))
            raise ValueError(f"There is no event {event!r}; the events are {known}.")
        self.hooks.setdefault(event, []).append(hook)
        return self

    def map(self, matcher: Matcher, command: App) -> Self:
        """Answer a matching user message with `command(env)` in place of the stack.

        A string "/clear" or "clear" matches a message that begins with "/clear"; a pattern
        is searched for; a callable gets the text. The first match wins.
        """
        self.commands.append((_matching(matcher), command))
        return self

    def build(self, app: App | None = None) -> App:
        """Compose the layers around the terminal app."""
        composed = app or self.app
        if composed is None:
            raise RuntimeError("The pipeline has no terminal app: add .run(completion).")
        for layer in reversed(self.layers):
            composed = layer(composed)
        return composed

    def __call__(self, env: Env) -> Any:
        return self.build()(env)

    def start(
        self,
        input: str | Message | Mapping[str, Any] | list[Message] | None = None,
        *,
        on_event: OnEvent | None = None,
        app: App | None = None,
        hooks: Mapping[str, Sequence[Hook]] | None = None,
        **fields: Any,
    ) -> Env:
        """Run one turn and give its env; what the stack raises passes through.

        `input` is a prompt, a message, its dictionary, or a list of messages. `hooks` are
        called after the pipeline's own, in this turn only; `fields` are further fields of
        the env.
        """
        listeners = () if on_event is None else (on_event,)
        fields = {"events": Events(*listeners), "messages": _log(input), **fields}
        env = Env(hooks=self._with(hooks or {}), **fields)
        stack = self._command(env) or self.build(app)
        env.hook(names.TURN_START, {})
        try:
            stack(env)
        finally:
            env.hook(names.TURN_END, {})
        return env

    def _with(self, more: Mapping[str, Sequence[Hook]]) -> dict[str, list[Hook]]:
        names = {*self.hooks, *more}
        return {name: [*self.hooks.get(name, ()), *more.get(name, ())] for name in names}

    def _command(self, env: Env) -> App | None:
        last = env.messages[-1] if env.messages else None
        if last is None or last.role != USER or last.content is None:
            return None
        return next((command for matches, command in self.commands if matches(last.content)), None)


def _matching(matcher: Matcher) -> Callable[[str], Any]:
    if isinstance(matcher, str):
        # "/clear" must not answer "/clearance".
        return re.compile(rf"/{re.escape(matcher.removeprefix('/'))}(?!\S)").match
    return matcher.search if isinstance(matcher, re.Pattern) else matcher


def _log(value: Any) -> MessageLog:
    if isinstance(value, MessageLog):
        return value
    return MessageLog(_messages(value))


def _messages(value: Any) -> Iterable[Message]:
    if value is None:
        return []
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("The prompt is empty; give it some text.")
        return [Message(USER, value)]
    if isinstance(value, Message):
        return [value]
    if isinstance(value, Mapping):
        return [Message.from_dict(value)]
    if isinstance(value, list | tuple):
        return [m if isinstance(m, Message) else Message.from_dict(m) for m in value]
    raise TypeError(f"A turn starts from text or messages, not {type(value).__name__}.")
