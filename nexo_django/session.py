"""The face: a handle on the one chat of an agent and an instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from django.core.exceptions import SynchronousOnlyOperation

from nexo_django import attachments as attached
from nexo_django import conf, deciding, mcp, prompts, registry, streaming
from nexo_django.agent import Agent, stack
from nexo_django.compaction import Change
from nexo_django.decisions import ANSWERED, APPROVED, DENIED, Decision, PendingCall
from nexo_django.events import Event, OnEvent
from nexo_django.exceptions import SessionNotFound, brief
from nexo_django.media import Upload
from nexo_django.messages import Message, Usage
from nexo_django.middleware.structured import holding
from nexo_django.pool import in_pool
from nexo_django.reply import Reply
from nexo_django.sandbox.base import Place
from nexo_django.stores.base import StoredChat, TurnRequest
from nexo_django.stores.choice import default_store
from nexo_django.structured import Output
from nexo_django.turn import Run, compact, stored_reply

# Longer than anybody waits, and still a time that a clock can add.
LONGEST = 365 * 24 * 3600
# A prompt's text, max_turns, key, wait and output.
_Given = tuple[Any, int | None, Any, float | None, Any]


class Session:
    """A remembering instance of an agent, addressed by `(agent name, instance id)`.

    The chat is made by the first prompt; making the handle does no I/O. Several threads may
    use one session: its turns run one after the other, like those of several processes.
    """

    def __init__(self, agent: Agent, instance_id: Any) -> None:
        self.agent = agent
        self.instance_id = prompts.instance_id(instance_id)

    @classmethod
    def resume(cls, agent: type[Agent] | str, instance_id: Any, **agent_kwargs: Any) -> Self:
        """Give the session of that pair; its chat is found, or made by the first prompt.

        `agent` is the class or its registered name; `agent_kwargs` go to its constructor.
        Raises TypeError or ValueError for an instance id that can't be stored.
        """
        return cls(_agent_class(agent)(**agent_kwargs), instance_id)

    @classmethod
    def get(cls, agent: type[Agent] | str, instance_id: Any, **agent_kwargs: Any) -> Self:
        """Give the session of that pair if its chat is stored, or raise SessionNotFound."""
        session = cls.resume(agent, instance_id, **agent_kwargs)
        _refuse_event_loop("get")
        if not session.stored.exists():
            raise SessionNotFound(
                f"There is no session of {session.agent.name!r} for {session.instance_id!r}. "
                f"Session.resume() makes one."
            )
        return session

    @classmethod
    async def aget(cls, agent: type[Agent] | str, instance_id: Any, **agent_kwargs: Any) -> Self:
        """See get()."""
        return await in_pool(cls.get, agent, instance_id, **agent_kwargs)

    def __repr__(self) -> str:
        return f"<Session {self.agent.name!r} {self.instance_id!r}>"

    @property
    def stored(self) -> StoredChat:
        """The store's handle of the chat; the settings say which store, at every use."""
        return default_store().chat(self.agent.name, self.instance_id)

    def prompt(
        self,
        text: str | list[dict[str, Any]],
        max_turns: int | None = None,
        on_event: OnEvent | None = None,
        key: Any = None,
        wait: float | None = None,
        output: Any = None,
        attachments: Sequence[Any] = (),
    ) -> Reply:
        """Run one turn and give its reply.

        The prompt is committed before the model is asked, each message as it is produced.
        `max_turns` is how many model calls the turn may make; `on_event(type, payload)` is
        called in this thread; `key` makes the prompt idempotent; `wait` is how many seconds
        to wait for another turn of the session (default NEXO["TURN_WAIT"]). `output` is the
        type that the answer must have, such as a pydantic model; `reply.output` is the value.
        `attachments` are files: paths, Django files, pairs (name, bytes), or parts of earlier
        messages.

        Raises TypeError or ValueError for what is no prompt, ConfigurationError,
        InsideTransaction, SessionBusy and KeyConflict before anything is written;
        ProviderError, ContextTooLarge, LimitExceeded, LeaseLost and StoreFailed later: the
        prompt and what was finished are stored then, and `continue_turn()` goes on.
        OutputInvalid when the answer, corrected once, is no value of `output`; it is stored.
        """
        _refuse_event_loop("prompt")
        return self._run(text, max_turns, key, wait, output, attachments)(on_event)

    def stream(
        self,
        text: str | list[dict[str, Any]],
        max_turns: int | None = None,
        key: Any = None,
        wait: float | None = None,
        output: Any = None,
        attachments: Sequence[Any] = (),
    ) -> Iterator[Event]:
        """Run one turn and give its events as they happen; see prompt().

        What is no prompt is refused here, not at the first event. Leaving the iterator ends
        the turn: partial text is stored as interrupted.
        """
        _refuse_event_loop("stream")
        return streaming.iterate(self._run(text, max_turns, key, wait, output, attachments))

    async def aprompt(
        self,
        text: str | list[dict[str, Any]],
        max_turns: int | None = None,
        on_event: OnEvent | None = None,
        key: Any = None,
        wait: float | None = None,
        output: Any = None,
        attachments: Sequence[Any] = (),
    ) -> Reply:
        """See prompt(); `on_event` is called in a thread of the pool."""
        given = (text, max_turns, key, wait, output)
        return await in_pool(self._run_in_pool(given, attachments), on_event)

    def astream(
        self,
        text: str | list[dict[str, Any]],
        max_turns: int | None = None,
        key: Any = None,
        wait: float | None = None,
        output: Any = None,
        attachments: Sequence[Any] = (),
    ) -> AsyncIterator[Event]:
        """See stream(); what can't be attached is refused at the first event."""
        given = (text, max_turns, key, wait, output)
        return streaming.aiterate(self._run_in_pool(given, attachments))

    def continue_turn(
        self,
        max_turns: int | None = None,
        on_event: OnEvent | None = None,
        wait: float | None = None,
        output: Any = None,
    ) -> Reply:
        """Finish an interrupted turn: finished results are kept, nothing runs twice.

        Calls that never started run now, and so do those of tools declared idempotent; any
        other gets a result that says it was interrupted. `output` is the type that the prompt
        asked for: the class is not stored. Raises NothingToContinue when the
        last turn is settled, SessionNotFound when there is no chat.
        """
        _refuse_event_loop("continue_turn")
        return self._continuation(max_turns, wait, output)(on_event)

    async def acontinue_turn(
        self,
        max_turns: int | None = None,
        on_event: OnEvent | None = None,
        wait: float | None = None,
        output: Any = None,
    ) -> Reply:
        """See continue_turn()."""
        return await in_pool(self._continuation(max_turns, wait, output), on_event)

    def reply(self, key: Any) -> Reply | None:
        """Give the stored reply of the prompt with that key, whichever process ran it.

        None until its turn ended or waits for somebody; one that failed or was interrupted
        has no reply before it is continued.
        """
        _refuse_event_loop("reply")
        return self._stored_reply(prompts.key(key))

    async def areply(self, key: Any) -> Reply | None:
        """See reply()."""
        return await in_pool(self._stored_reply, prompts.key(key))

    @property
    def messages(self) -> list[Message]:
        """The view: the messages that the model sees."""
        _refuse_event_loop("messages")
        return self.stored.view()

    async def amessages(self) -> list[Message]:
        """See messages."""
        return await in_pool(self.stored.view)

    def history(self) -> list[Message]:
        """Give every message that was kept, compacted ones too."""
        _refuse_event_loop("history")
        return list(self.stored.history())

    async def ahistory(self) -> list[Message]:
        """See history()."""
        return await in_pool(lambda: list(self.stored.history()))

    def attachment(self, attachment_id: str) -> Upload | None:
        """Give an attached file of the session by its part's id, with its `data`.

        None when the session has none of that id, or the file is gone.
        """
        _refuse_event_loop("attachment")
        return self.stored.attached(attachment_id)

    async def aattachment(self, attachment_id: str) -> Upload | None:
        """See attachment()."""
        return await in_pool(self.stored.attached, attachment_id)

    def usage(self) -> Usage:
        """Give the sum of what the session's model calls used."""
        _refuse_event_loop("usage")
        return self.stored.usage()

    async def ausage(self) -> Usage:
        """See usage()."""
        return await in_pool(self.stored.usage)

    def cancel(self) -> bool:
        """Ask the running turn to stop, from any process; False when none runs.

        It stops between two steps or two chunks; its text so far is stored as interrupted.
        """
        _refuse_event_loop("cancel")
        return self.stored.cancel()

    async def acancel(self) -> bool:
        """See cancel()."""
        return await in_pool(self.stored.cancel)

    def delete(self) -> dict[str, int]:
        """Delete the chat with everything of it, and count what went.

        Raises SessionBusy while a turn runs.
        """
        _refuse_event_loop("delete")
        return self._delete()

    async def adelete(self) -> dict[str, int]:
        """See delete()."""
        return await in_pool(self._delete)

    def _delete(self) -> dict[str, int]:
        gone = self.stored.delete()
        # What the chat's files are is gone with them; a workspace on the disk is not.
        self.agent.opened().for_chat(Place(self.agent.name, self.instance_id)).discard()
        return gone

    def compact(self, instructions: str | None = None, dry_run: bool = False) -> Change | None:
        """Make the view smaller now, and tell what changed; None when nothing could go.

        The originals stay in the history, and `undo_compaction()` brings the view back.
        `instructions` tell the summariser what matters. With `dry_run` nothing is stored and
        no model is asked. Raises SessionNotFound, SessionBusy, and NotSupported for an agent
        whose pipeline has no compaction.
        """
        _refuse_event_loop("compact")
        return compact(self, instructions, dry_run)

    async def acompact(
        self, instructions: str | None = None, dry_run: bool = False
    ) -> Change | None:
        """See compact()."""
        return await in_pool(compact, self, instructions, dry_run)

    def undo_compaction(self) -> bool:
        """Bring back the view before the last compaction; False when there was none."""
        _refuse_event_loop("undo_compaction")
        return self.stored.undo_compaction()

    async def aundo_compaction(self) -> bool:
        """See undo_compaction()."""
        return await in_pool(self.stored.undo_compaction)

    def as_of(self, position: int) -> list[Message]:
        """Give what the model saw when the message of that position was the last one."""
        _refuse_event_loop("as_of")
        return self.stored.view(as_of=position)

    async def aas_of(self, position: int) -> list[Message]:
        """See as_of()."""
        return await in_pool(self.stored.view, as_of=position)

    def pending(self) -> list[PendingCall]:
        """Give the calls that wait for an approval or an answer, in call order."""
        _refuse_event_loop("pending")
        return self.stored.pending()

    async def apending(self) -> list[PendingCall]:
        """See pending()."""
        return await in_pool(self.stored.pending)

    def approve(self, call_id: str, by: Any = None) -> None:
        """Approve one call that waits; `continue_turn()` runs it.

        Needs no turn and no lease, and may be called in any process; `by` is who decided. A
        call is decided once. Raises SessionNotFound, CallNotPending, AlreadyDecided and
        DecisionRefused.
        """
        _refuse_event_loop("approve")
        self._decide(call_id, deciding.decision(APPROVED, by))

    async def aapprove(self, call_id: str, by: Any = None) -> None:
        """See approve()."""
        await in_pool(self._decide, call_id, deciding.decision(APPROVED, by))

    def deny(self, call_id: str, reason: str = "", by: Any = None) -> None:
        """Deny one call that waits; the model reads the reason. See approve()."""
        _refuse_event_loop("deny")
        self._decide(call_id, deciding.decision(DENIED, by, reason))

    async def adeny(self, call_id: str, reason: str = "", by: Any = None) -> None:
        """See deny()."""
        await in_pool(self._decide, call_id, deciding.decision(DENIED, by, reason))

    def answer(self, call_id: str, text: str, by: Any = None) -> None:
        """Answer the question of one call that waits; the text is its result. See approve()."""
        _refuse_event_loop("answer")
        self._decide(call_id, deciding.decision(ANSWERED, by, text))

    async def aanswer(self, call_id: str, text: str, by: Any = None) -> None:
        """See answer()."""
        await in_pool(self._decide, call_id, deciding.decision(ANSWERED, by, text))

    def mcp_prompt(self, server: str, name: str, /, **arguments: Any) -> str:
        """Give a prompt that one of the agent's MCP servers has, as text for prompt().

        Raises ToolDenied unless the agent's permissions allow "server/get_prompt", ToolError
        when the server fails.
        """
        _refuse_event_loop("mcp_prompt")
        return mcp.prompt(self.agent.mcp_servers(), self.agent.granted(), server, name, arguments)

    async def amcp_prompt(self, server: str, name: str, /, **arguments: Any) -> str:
        """See mcp_prompt()."""
        servers, granted = self.agent.mcp_servers(), self.agent.granted()
        return await in_pool(mcp.prompt, servers, granted, server, name, arguments)

    def close(self) -> None:
        """Give back what the agent holds; may be called twice."""
        self.agent.close()

    async def aclose(self) -> None:
        """See close()."""
        await in_pool(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _run(
        self,
        text: Any,
        max_turns: int | None,
        key: Any,
        wait: float | None,
        output: Any = None,
        attachments: Sequence[Any] = (),
    ) -> Run:
        self._check()
        held = None if output is None else Output.of(output)
        files, parts = attached.read(attachments, self.agent.model_id, self._attached)
        message = prompts.prompt(text, self.agent.max_prompt_bytes, parts)
        if held is not None:
            message = message.replace(parts=(*(message.parts or ()), held.part))
        return self._ready(message, max_turns, prompts.key(key), wait, held, files)

    def _attached(self, attachment_id: str) -> Upload | None:
        return self.stored.attached(attachment_id)

    def _run_in_pool(self, given: _Given, attachments: Sequence[Any]) -> streaming.Run:
        """Give what runs the turn; files are read in its thread, not in the event loop's."""
        if not attachments:
            return self._run(*given)
        return lambda on_event: self._run(*given, attachments=attachments)(on_event)

    def _continuation(self, max_turns: int | None, wait: float | None, output: Any = None) -> Run:
        self._check()
        held = None if output is None else Output.of(output)
        return self._ready(None, max_turns, None, wait, held)

    def _stored_reply(self, key: str | None) -> Reply | None:
        if key is None:
            raise TypeError("A reply is found by its prompt's key, not None.")
        turn = self.stored.ended(key)
        return None if turn is None else stored_reply(turn)

    def _decide(self, call_id: str, made: Decision) -> None:
        deciding.decide(self.stored, self.agent.name, self.instance_id, call_id, made)

    def _check(self) -> None:
        conf.check()
        self.agent.check()

    def _ready(
        self,
        message: Message | None,
        max_turns: int | None,
        key: str | None,
        wait: float | None,
        output: Output | None = None,
        files: Sequence[Upload] = (),
    ) -> Run:
        """Check everything that can be checked before anything is written."""
        limit = self.agent.max_turns if max_turns is None else max_turns
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ValueError(f"max_turns is {brief(max_turns)}; it must be at least 1.")
        if wait is not None and not _is_wait(wait):
            raise ValueError(f"wait is {brief(wait)}; give seconds, 0 or more.")
        pipeline = stack(self.agent)
        check = getattr(pipeline.app, "check", None)
        if check is not None:
            check()
        again = frozenset(tool.name for tool in self.agent.offered() if tool.idempotent)
        request = TurnRequest(message, key, wait, self.agent.model_id, again, tuple(files))
        if output is not None:
            pipeline = holding(pipeline, output)
        return Run(self, request, pipeline, limit, output)


def _agent_class(agent: Any) -> type[Agent]:
    if isinstance(agent, str):
        return registry.get(agent)
    if isinstance(agent, type) and issubclass(agent, Agent) and agent is not Agent:
        return agent
    raise TypeError(
        f"A session is resumed with a subclass of Agent or its registered name, not {brief(agent)}."
    )


def _is_wait(wait: Any) -> bool:
    return isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= LONGEST


def _refuse_event_loop(verb: str) -> None:
    """Refuse to block an event loop: the async twin is one letter away."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SynchronousOnlyOperation(
        f"Session.{verb} was called where an event loop runs; await session.a{verb}() there."
    )
