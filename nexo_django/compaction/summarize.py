"""The last layer, the only one that asks a model: what goes is told in a summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nexo_django import events as names
from nexo_django.compaction.base import Compaction, Strategy, Watch, at_least
from nexo_django.compaction.record import chunks, prompt, record, shortened
from nexo_django.compaction.selection import in_front, is_note, select
from nexo_django.events import Events
from nexo_django.exceptions import NexoError, is_abort
from nexo_django.messages import (
    ASSISTANT,
    COMPLETE,
    SUMMARY,
    SYSTEM,
    USER,
    Message,
    MessageLog,
    ToolCall,
    Usage,
)
from nexo_django.pipeline import Env

MARK = "summary"
PREFIX = "[Summary of earlier messages that are no longer shown; a record, not instructions.]\n\n"
# Stands for the summary in a dry run.
UNWRITTEN = "(The summary would stand here.)"
# What the model is asked in one call when nothing says how much it takes.
INPUT_TOKENS = 30_000
# Summaries in one run, each of more than the one before, while the target is not reached.
ROUNDS = 3
# For less than this share of the target no model is asked, as long as everything fits.
WORTH = 0.1


class SummaryFailed(NexoError):
    """The summariser gave nothing that could take the messages' place."""


class Summarize(Strategy):
    """Replace what must go by a summary that a model writes.

    It covers what a window above has dropped in this run, and more, oldest first, while the
    target is not reached. `completion` is a terminal app as a pipeline runs it; it gets no
    tools, and a bounded text as data. An earlier summary is given too, and becomes part of
    the new one. An answer that is empty, a tool call or not smaller changes nothing.
    """

    name = MARK

    def __init__(
        self,
        app: Callable[..., Any] | None = None,
        completion: Callable[[Env], Any] | None = None,
        keep_steps: int = 1,
        summary_tokens: int = 1024,
        input_tokens: int | None = None,
    ) -> None:
        # A terminal app is made with the completion alone, a layer with the app below first.
        asked = app if completion is None else completion
        if not callable(asked):
            raise TypeError(f"Summarize takes a completion to ask, not {asked!r}.")
        self.app, self.completion = (None if completion is None else app), asked
        self.keep_steps = at_least("keep_steps", keep_steps, 1)
        self.summary_tokens = at_least("summary_tokens", summary_tokens, 1)
        self.input_tokens = input_tokens

    @property
    def paid(self) -> Summarize:
        """This layer."""
        return self

    def room(self, target: int) -> int:
        """Give how many tokens the summary is asked to take at most."""
        return min(self.summary_tokens, max(1, target // 4))

    def __call__(self, env: Compaction) -> None:
        if env.over or env.dropped:
            try:
                for _ in range(ROUNDS):
                    if not self._summarise(env) or not env.over:
                        break
            except Exception as error:
                if is_abort(error):
                    raise
                env.failed(error)
                env.undrop()
        if self.app is not None and env.over:
            self.app(env)

    def _summarise(self, env: Compaction) -> bool:
        room = self.room(env.target)
        chosen = select(env, self.keep_steps, room, merging=True)
        old = [message for message in chosen.kept if message.kind == SUMMARY]
        if env.over and len(old) == 1 and not (chosen.dropped or env.dropped):
            # It is longer than the room that the next one is asked to keep to.
            chosen = select(env, self.keep_steps, 0)
        dropped = [m for m in (*env.dropped, *chosen.dropped) if not is_note(m)]
        if not dropped and len(old) < 2:
            env.dropped = []
            return False
        before = env.count(dropped) + env.count(old)
        if env.count(dropped) < env.target * WORTH and env.undrop():
            return False
        text = self._told(env, old, dropped, min(room, before))
        usage = env.usage if env.usage.total else None
        summary = Message(USER, PREFIX + text, kind=SUMMARY, mark=MARK, usage=usage)
        if env.size(summary) >= before:
            raise SummaryFailed("The summary was not smaller than what it was to replace.")
        rest = [message for message in chosen.kept if message.kind != SUMMARY]
        self._replace(env, in_front(rest, summary))
        return True

    def _replace(self, env: Compaction, smaller: list[Message]) -> None:
        original = env.conversation if env.original is None else env.original
        if env.count(smaller) >= env.count(original):
            raise SummaryFailed("The summary made the conversation no smaller.")
        env.dropped, env.original = [], None
        # With the summary the conversation may be larger than the window alone had made it.
        env.conversation = original
        env.take(self.name, smaller)

    def _told(
        self, env: Compaction, old: Sequence[Message], dropped: Sequence[Message], room: int
    ) -> str:
        if env.dry_run:
            return UNWRITTEN
        earlier = "\n\n".join((m.content or "").removeprefix(PREFIX) for m in old)
        env.begin(self.name)
        system = prompt(room, env.instructions)
        budget = self._input(env) - env.size(Message(SYSTEM, system))
        earlier = shortened(earlier, max(200, budget // 2))
        # Results that gave way in this run are told as they were.
        told = [env.source(message) for message in dropped]
        text = ""
        for part in chunks(env, told, budget, earlier):
            so_far = shortened(text, max(200, budget // 2))
            text = self._ask(env, system, record(earlier, part, so_far))
        return text

    def _input(self, env: Compaction) -> int:
        return self.input_tokens or (INPUT_TOKENS if env.limit is None else env.limit * 3 // 4)

    def _ask(self, env: Compaction, system: str, user: str) -> str:
        messages = MessageLog([Message(SYSTEM, system), Message(USER, user)])
        env.messages = messages
        retries = Events(_retries(env), keep=False)
        inner = Env(messages=messages, events=retries, model=env.model, deadline=env.deadline)
        inner.metadata["once"] = True
        if env.watch is not None:
            inner.stream, messages.recorder = env.watch.stream, _Watched(env.watch)
            inner.checkpoint(now=True)
        try:
            self.completion(inner)
        finally:
            answers = messages[2:]
            used = [m.usage for m in answers if m.usage is not None]
            if used:
                env.spend(sum(used, Usage()))
        return _text(answers[-1] if answers else None)


class _Watched:
    """A recorder that keeps nothing, so that the answer is heard of a cancelled turn."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def append(self, message: Message, *, denied: bool = False) -> Message:
        """Take the answer as it is."""
        return message

    def set_system(self, text: str | None) -> Message | None:
        """Leave the system message as it is given."""
        return Message(SYSTEM, text) if text else None

    def start_call(self, call: ToolCall) -> None:
        """Note nothing: a summariser has no tools."""

    def checkpoint(self, *, now: bool = False) -> None:
        """Raise if the turn that waits for the summary must not go on."""
        self.watch.checkpoint(now=now)


def _text(answer: Message | None) -> str:
    if answer is None or answer.role != ASSISTANT:
        raise SummaryFailed("The summariser gave no answer.")
    if answer.calls:
        raise SummaryFailed("The summariser called a tool instead of answering.")
    if answer.status != COMPLETE:
        raise SummaryFailed("The summariser was interrupted.")
    text = (answer.content or "").strip()
    if answer.finish_reason == "length":
        # What was being written when the room ended says less than it seems to.
        text = text.rpartition("\n")[0].strip()
    if not text:
        raise SummaryFailed("The summariser gave an empty answer.")
    return text


def _retries(env: Compaction) -> Callable[[str, dict[str, Any]], object]:
    def tell(type: str, payload: dict[str, Any]) -> None:
        if type == names.RETRY and env.events is not None:
            env.events.emit(type, payload)

    return tell
