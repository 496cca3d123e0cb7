"""Running the tools that the model called, and giving it their results."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from nexo_django import conf, events
from nexo_django.exceptions import (
    ConfigurationError,
    InvalidArguments,
    ToolDenied,
    ToolError,
    ToolNotFound,
    brief,
)
from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.middleware.attempt import attempt
from nexo_django.middleware.parallel import in_transaction, together
from nexo_django.permissions import Verdict
from nexo_django.pipeline import App, Env
from nexo_django.sanitize import clean_json
from nexo_django.tools import Tool, ToolResult, resolve
from nexo_django.transcript import open_calls
from nexo_django.truncation import truncate


@dataclass
class ToolRun:
    """One call on its way: the payload of before_tool, approve_tool and after_tool.

    A hook acts by changing it: `arguments`; `result`, which answers without running the
    tool; `denied`, True or the reason, which refuses, as raising ToolDenied does. after_tool
    finds the result and may replace it; it is called in the thread that ran the tool, one
    call at a time.
    """

    env: Env = field(repr=False)
    call: ToolCall
    name: str
    arguments: dict[str, Any]
    result: Any = None
    denied: bool | str = False
    message: Message | None = field(default=None, repr=False)
    cut: dict[str, Any] | None = field(default=None, repr=False)


class DefaultToolPipeline:
    """Offer the tools to the model, and answer every call of its message.

    Calls run side by side, at most `max_parallel` at once; a single one, or any inside a
    database transaction, runs in the turn's own thread. Each result is committed as its
    call ends, and shown to the model in call order. Calls that an earlier run of the turn
    left open are answered before the model is asked. What a tool raises is a result the
    model reads; signals to stop this turn (Celery's soft time limit, a cancelled turn) pass
    through. `late(env)` gives further tools when a turn begins: what takes I/O to find out,
    such as the tools of a server.
    """

    def __init__(
        self,
        app: App,
        tools: Iterable[Any] = (),
        max_parallel: int = 8,
        late: Callable[[Env], Iterable[Tool]] | None = None,
    ) -> None:
        if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
            raise ConfigurationError(f"max_parallel is {max_parallel!r}; it is at least 1.")
        if isinstance(tools, Iterator):
            # The stack is built for every turn.
            raise ConfigurationError(
                f"The tools are a {type(tools).__name__}, which only the first turn could read; "
                f"give a list."
            )
        self.app = app
        self.tools = resolve(tools)
        self.max_parallel = max_parallel
        self._late = late
        self._by_name = {tool.name: tool for tool in self.tools}
        self._hooks = threading.Lock()

    def __call__(self, env: Env) -> None:
        env.tools = self.offer(env)
        self._answer(env, open_calls(env.messages))
        self.app(env)
        self._answer(env, open_calls(env.messages))

    def offer(self, env: Env) -> list[Tool]:
        """Give the tools of the turn; the late ones are asked for once."""
        if self._late is not None:
            late, self._late = self._late, None
            self.tools = resolve([*self.tools, *late(env)])
            self._by_name = {tool.name: tool for tool in self.tools}
        return self.tools

    def _answer(self, env: Env, calls: list[ToolCall]) -> None:
        runs = [ToolRun(env, call, call.name, _arguments(call)) for call in calls]
        for run in runs:
            told = {"id": run.call.id, "name": run.name, "arguments": run.arguments}
            env.emit(events.TOOL_CALL, clean_json(told))
        for run in runs:
            _ask(run)
        try:
            self._perform_all(env, runs)
        finally:
            env.messages.add(run.message for run in runs if run.message is not None)

    def _perform_all(self, env: Env, runs: list[ToolRun]) -> None:
        if len(runs) > 1 and self.max_parallel > 1 and not in_transaction():
            together(
                self._perform,
                runs,
                limit=self.max_parallel,
                tell=_tell,
                remaining=lambda: _remaining(env),
            )
            return
        for run in runs:
            self._perform(run)
            _tell(run)

    def _perform(self, run: ToolRun) -> None:
        run.result = self._result(run)
        try:
            with self._hooks:
                run.env.hook(events.AFTER_TOOL, run)
        finally:
            # The tool ran: its result is kept even when a hook fails.
            run.message = run.env.messages.record(_message(run))

    def _result(self, run: ToolRun) -> ToolResult:
        if run.result is not None:
            return attempt(run.env, run.call, lambda: run.result)
        try:
            tool = self._allowed(run)
        except ToolError as error:
            return ToolResult(str(error), is_error=True)
        # Not part of the attempt: a call that can't be recorded must not run.
        if run.env.messages.recorder is not None:
            run.env.messages.recorder.start_call(run.call)
        return attempt(run.env, run.call, lambda: tool.run(run.arguments, run.env))

    def _allowed(self, run: ToolRun) -> Tool:
        if run.denied:
            reason = run.denied if isinstance(run.denied, str) else None
            raise ToolDenied(reason or f'Tool call to "{run.name}" was denied.')
        tool = self._by_name.get(run.name)
        if tool is None:
            names = ", ".join(self._by_name) or "none"
            raise ToolNotFound(f"There is no tool {brief(run.name)}. The tools are: {names}.")
        if _verdict(run, tool) is not Verdict.ALLOW:
            raise ToolDenied(f"The tool {run.name} is not allowed here.")
        if not run.arguments and not _parsed(run.call):
            raise InvalidArguments(f"The arguments of {run.name} were not a JSON object; send one.")
        return tool


def _verdict(run: ToolRun, tool: Tool) -> Verdict:
    """Judge a call by the agent's permissions as they are now."""
    agent = run.env.agent
    # In a bare pipeline the host gave each tool itself.
    return Verdict.ALLOW if agent is None else agent.granted().judge(tool, run.arguments)


def _ask(run: ToolRun) -> None:
    try:
        run.env.hook(events.BEFORE_TOOL, run)
        run.env.hook(events.APPROVE_TOOL, run)
    except ToolError as error:
        run.denied = str(error)


def _parsed(call: ToolCall) -> bool:
    return call.raw_arguments is None and isinstance(call.arguments, dict)


def _arguments(call: ToolCall) -> dict[str, Any]:
    # A hook may change them; the stored message stays as it is.
    return copy.deepcopy(call.arguments) if isinstance(call.arguments, dict) else {}


def _remaining(env: Env) -> float:
    if env.deadline is None:
        return math.inf
    left = env.deadline - monotonic()
    if left < 0:
        env.checkpoint()
    return max(left, 0.001)


def _message(run: ToolRun) -> Message:
    result = attempt(run.env, run.call, lambda: run.result)
    text = result.text if result.truncated else _capped(run, result.text)
    return Message(TOOL, text, tool_call_id=run.call.id, is_error=result.is_error)


def _capped(run: ToolRun, text: str) -> str:
    caps = {
        "max_lines": conf.get("TRUNCATE_LINES"),
        "max_bytes": conf.get("TRUNCATE_BYTES"),
        "max_line_chars": conf.get("TRUNCATE_LINE_CHARS"),
    }
    capped = truncate(text, **caps)
    if not capped.truncated:
        return capped.text
    keep = run.env.metadata.get("keep_output")
    output_id = None if keep is None else keep(text, run.call)
    if output_id is not None:
        capped = truncate(text, **caps, output_id=output_id)
    run.cut = {
        "id": run.call.id,
        "name": run.name,
        "output_id": output_id,
        "total_lines": capped.total_lines,
        "total_bytes": capped.total_bytes,
        "kept_lines": capped.kept_lines,
        "kept_bytes": capped.kept_bytes,
    }
    return capped.text


def _tell(run: ToolRun) -> None:
    message = run.message
    if message is None:
        return
    if run.cut is not None:
        run.env.emit(events.TRUNCATED, clean_json(run.cut))
    told = {"id": run.call.id, "name": run.name, "content": message.content or ""}
    run.env.emit(events.TOOL_RESULT, clean_json({**told, "is_error": message.is_error}))
