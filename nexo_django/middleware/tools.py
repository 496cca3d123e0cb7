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
from nexo_django.decisions import status_of
from nexo_django.exceptions import (
    ConfigurationError,
    InvalidArguments,
    ToolDenied,
    ToolError,
    ToolNotFound,
    brief,
)
from nexo_django.messages import TOOL, Message, ToolCall
from nexo_django.middleware import gate
from nexo_django.middleware.attempt import attempt
from nexo_django.middleware.parallel import in_transaction, together
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
    awaits: str | None = None
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
        self._offered = False
        self._withheld: set[str] = set()
        self._by_name = {tool.name: tool for tool in self.tools}
        self._hooks = threading.Lock()

    def __call__(self, env: Env) -> None:
        env.tools = self.offer(env)
        if self._answered(env, open_calls(env.messages)):
            self.app(env)
            self._answered(env, open_calls(env.messages))

    def offer(self, env: Env) -> list[Tool]:
        """Give the tools of the turn that its permissions can allow, found out once."""
        if not self._offered:
            late = [] if self._late is None else self._late(env)
            tools = resolve([*self.tools, *late]) if late else self.tools
            self.tools = gate.offered(env, tools)
            self._by_name = {tool.name: tool for tool in self.tools}
            self._withheld = {tool.name for tool in tools} - self._by_name.keys()
            self._offered = True
        return self.tools

    def _answered(self, env: Env, calls: list[ToolCall]) -> bool:
        """Answer calls; False when some wait for a decision, and the turn stops with them."""
        runs = [ToolRun(env, call, call.name, _arguments(call)) for call in calls]
        waited: dict[str, str] = dict(getattr(env.turn, "waits", {}))
        for run in runs:
            if run.call.id not in waited:
                told = {"id": run.call.id, "name": run.name, "arguments": run.arguments}
                env.emit(events.TOOL_CALL, clean_json(told))
        for run in runs:
            _ask(run)
        made, told_of = getattr(env.turn, "decisions", {}), set(waited)
        while runs:
            for run in runs:
                gate.judge(run, self._by_name.get(run.name), made.get(run.call.id))
            self._perform_those(env, [run for run in runs if run.awaits is None])
            runs = [run for run in runs if run.awaits is not None]
            if runs:
                gate.hold(env, runs, self._by_name, told_of)
                made = env.turn.decided()
                if not any(run.call.id in made for run in runs):
                    env.should_exit = True
                    env.metadata["status"] = status_of([run.awaits for run in runs])
                    return False
        return True

    def _perform_those(self, env: Env, runs: list[ToolRun]) -> None:
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
            said = {"denied": True} if run.denied else {}
            run.message = run.env.messages.record(_message(run), **said)

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
            if run.name in self._withheld or gate.withheld(run.env, run.name):
                raise ToolDenied(gate.not_allowed(run.name))
            names = ", ".join(self._by_name) or "none"
            raise ToolNotFound(f"There is no tool {brief(run.name)}. The tools are: {names}.")
        if not run.arguments and not _parsed(run.call):
            raise InvalidArguments(f"The arguments of {run.name} were not a JSON object; send one.")
        return tool


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
    text = result.text if result.truncated else _capped(run, result)
    return Message(TOOL, text, tool_call_id=run.call.id, is_error=result.is_error)


def _capped(run: ToolRun, result: ToolResult) -> str:
    text = result.text
    caps: dict[str, Any] = {
        "mode": result.mode,
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
