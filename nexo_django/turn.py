"""One turn: from an open turn of the store through the stack to the reply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexo_django import conf, events, signals
from nexo_django.agent import Context, stack
from nexo_django.compaction import Change
from nexo_django.decisions import AWAITING
from nexo_django.events import Events, OnEvent
from nexo_django.exceptions import (
    ConfigurationError,
    NexoError,
    NotSupported,
    OutputInvalid,
    TurnCancelled,
    is_time_limit,
)
from nexo_django.messages import ASSISTANT, SYSTEM, Message, MessageLog
from nexo_django.middleware import DefaultCompactionPipeline
from nexo_django.pipeline import Env, Pipeline
from nexo_django.reply import Reply
from nexo_django.stores.base import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    OpenTurn,
    TurnRequest,
)
from nexo_django.structured import Output, Unfit
from nexo_django.transcript import is_prompt

if TYPE_CHECKING:
    from nexo_django.session import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """What one `prompt`, `stream` or `continue_turn` runs with."""

    session: Session
    request: TurnRequest
    pipeline: Pipeline
    max_turns: int
    output: Output | None = None
    # Told of the turn when its prompt is stored, before anything is asked of the model.
    begun: Callable[[OpenTurn], object] | None = None
    # What the turn asked for, for the signals.
    asked: list[tuple[Any, dict[str, Any]]] = field(default_factory=list, init=False, repr=False)

    def __call__(self, on_event: OnEvent | None = None) -> Reply:
        """Run the turn in this thread and give its reply.

        Whatever happens, how the turn ended is stored and the lease given back before this
        returns or raises; `done` and `error` are told after that.
        """
        listener = _Listener(on_event) if on_event else None
        try:
            return self._call(Events(*([listener] if listener else []), keep=False), listener)
        except StopIteration as error:
            # Neither a generator nor a future may let it out.
            raise RuntimeError("Something in the turn raised StopIteration.") from error

    def _call(self, sink: Events, listener: _Listener | None) -> Reply:
        turn = self.session.stored.begin(self.request)
        if self.begun is not None:
            self.begun(turn)
        if turn.reply is not None or turn.status != RUNNING:
            return self._told(sink, listener, stored_reply(turn))
        try:
            reply = self._run(turn, sink)
        except BaseException as error:
            self._announce(turn, _ending(error), error)
            if listener is not None and isinstance(error, Exception):
                listener.tell(error)
            raise
        self._announce(turn, reply.status)
        return self._told(sink, listener, reply)

    def _told(self, sink: Events, listener: _Listener | None, reply: Reply) -> Reply:
        """Tell the reply and give it, or raise OutputInvalid when it is not what was asked for."""
        if self.output is None or reply.status != DONE:
            return _told(sink, reply)
        try:
            reply = _valued(reply, self.output)
        except OutputInvalid as error:
            if listener is not None:
                listener.tell(error)
            raise
        return _told(sink, reply, output=self.output.to_json(reply.output))

    def _run(self, turn: OpenTurn, sink: Events) -> Reply:
        """Run the stack and store how it ended; the lease is given back in any case."""
        log = MessageLog(turn.messages)
        log.recorder = turn
        try:
            status = self._stack(turn, log, sink)
            turn.finish(status)
            pending = turn.pending if status in AWAITING else ()
            return Reply(_last_answer(log), status, turn.usage, pending, turn=turn.number)
        except TurnCancelled:
            turn.finish(CANCELLED)
            return Reply(_last_answer(log), CANCELLED, turn.usage, turn=turn.number)
        except BaseException as error:
            # Also for a lost lease: it may be another session's, raised in a tool.
            _finish_quietly(turn, _ending(error), error)
            raise
        finally:
            turn.close()

    def _stack(self, turn: OpenTurn, log: MessageLog, sink: Events) -> str:
        agent = self.session.agent
        context = Context(agent, agent.name, self.session.instance_id)
        seconds = conf.get("TURN_DEADLINE")
        self._send(signals.turn_started, turn)
        env = self.pipeline.start(
            log,
            events=sink,
            turn=turn,
            agent=agent,
            model=agent.model_id,
            stream=bool(sink.listeners),
            max_turns=self.max_turns,
            deadline=None if seconds is None else time.monotonic() + seconds,
            metadata={"context": context, "keep_output": turn.keep_output},
            hooks=self._hooks(),
        )
        _refuse_unstored(env)
        log[:] = env.messages
        return _status(env)

    def _hooks(self) -> dict[str, list[Any]]:
        """Tell the signals of what happens inside the stack."""

        def send(signal: Any) -> Any:
            return lambda env, payload: self._send(signal, env.turn, **payload)

        def ask(signal: Any) -> Any:
            # Sent when the turn has stopped: a receiver may decide and continue it.
            return lambda env, payload: self.asked.append((signal, payload))

        pairs = ((events.COMPACTED, signals.compacted), (events.TRUNCATED, signals.truncated))
        asking = (
            (events.APPROVAL_REQUESTED, signals.approval_requested),
            (events.QUESTION, signals.question_asked),
        )
        hooks = {name: [send(signal)] for name, signal in pairs}
        return {**hooks, **{name: [ask(signal)] for name, signal in asking}}

    def _announce(self, turn: OpenTurn, status: str, error: BaseException | None = None) -> None:
        name = "" if error is None else type(error).__name__
        self._send(signals.turn_finished, turn, status=status, usage=turn.usage, error=name)
        for signal, payload in self.asked:
            self._send(signal, turn, **payload)

    def _send(self, signal: Any, turn: OpenTurn, **details: Any) -> None:
        if not signal.has_listeners(type(self.session.agent)):
            return
        sent = signal.send_robust(
            type(self.session.agent),
            session=self.session,
            turn=turn.number,
            key=turn.key,
            **details,
        )
        for receiver, outcome in sent:
            if isinstance(outcome, Exception):
                logger.error("receiver=%r failed", receiver, exc_info=outcome)


def stored_reply(turn: OpenTurn) -> Reply:
    """Give the reply of a turn that ended before."""
    return Reply(turn.reply, turn.status, turn.usage, turn.pending, turn=turn.number)


class _Listener:
    """The caller's `on_event`, which is told of an error unless it raised it."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.failed = False

    def __call__(self, type: str, payload: dict[str, Any]) -> None:
        try:
            self.on_event(type, payload)
        except BaseException:
            self.failed = True
            raise

    def tell(self, error: Exception) -> None:
        """Tell of the error that ends the turn; it is raised whatever the listener does."""
        if self.failed:
            return
        try:
            self(events.ERROR, {"error": type(error).__name__, "message": _text(error)})
        except Exception:
            logger.exception("on_event=%r failed", self.on_event)


def _refuse_unstored(env: Env) -> None:
    """Raise for messages that a layer put into the list past the recorder."""
    lost = sum(m.position is None and m.role != SYSTEM for m in env.messages)
    if lost:
        raise ConfigurationError(
            f"{lost} message(s) of the turn were not stored: a layer of the pipeline must add "
            f"them with env.messages.append()."
        )


def _status(env: Env) -> str:
    return str(env.metadata.get("status", DONE))


def _ending(error: BaseException) -> str:
    return FAILED if isinstance(error, Exception) and not is_time_limit(error) else STOPPED


def _finish_quietly(turn: OpenTurn, status: str, error: BaseException) -> None:
    """Store how a failed turn ended; a failure to do so must not hide the first one."""
    try:
        turn.finish(status, type(error).__name__)
    except Exception:
        logger.warning("turn=%s: its end could not be stored; the next turn will", turn.number)


def _text(error: Exception) -> str:
    """Say what went wrong; only our own errors' texts are known to hold no content."""
    return str(error) if isinstance(error, NexoError) else type(error).__name__


def _last_answer(log: MessageLog) -> Message | None:
    """Give the model's last message in this turn, not an earlier turn's."""
    for message in reversed(log):
        if message.role == ASSISTANT:
            return message
        if is_prompt(message):
            return None
    return None


def _told(sink: Events, reply: Reply, **more: Any) -> Reply:
    told = {"content": reply.content, "status": reply.status, "usage": reply.usage.to_dict()}
    sink.emit(events.DONE, {**told, **more})
    return reply


def _valued(reply: Reply, output: Output) -> Reply:
    try:
        return replace(reply, output=output.parse(reply.content))
    except Unfit as unfit:
        kinds = sorted({str(error["type"]) for error in unfit.errors})
        raise OutputInvalid(
            f"The model's answer is no {output.name}: {len(unfit.errors)} error(s) "
            f"({', '.join(kinds[:5])}), listed in `errors`. The answer is stored.",
            errors=unfit.errors,
            reply=reply,
        ) from None


def compact(session: Session, instructions: str | None, dry_run: bool) -> Change | None:
    """Compact a session's view outside any turn, by the layer of its agent's pipeline."""
    agent = session.agent
    layer = _compaction_layer(stack(agent))
    turn = session.stored.maintain()
    try:
        log = MessageLog(turn.messages)
        log.recorder = turn
        env = Env(messages=log, turn=turn, agent=agent, model=agent.model_id)
        env.metadata["keep_output"] = turn.keep_output
        return layer.compact(env, instructions=instructions, dry_run=dry_run)
    finally:
        turn.close()


def _compaction_layer(pipeline: Pipeline) -> DefaultCompactionPipeline:
    """Build the stack from its compaction layer on inwards."""
    app: Any = pipeline.app
    for layer in reversed(pipeline.layers):
        app = layer(app)
        if isinstance(app, DefaultCompactionPipeline):
            return app
    raise NotSupported("The agent's pipeline has no DefaultCompactionPipeline to compact with.")
