"""An agent's servers: connected when they are needed, shared by what one session does."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from importlib import import_module
from typing import Any, TypeVar

from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.mcp import background, results
from nexo_django.mcp.config import Server
from nexo_django.mcp.connection import Connection, NotSent, Work
from nexo_django.mcp.names import offered_name, schema
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_text
from nexo_django.tools import Tool, ToolResult

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Some providers refuse a longer description.
MAX_DESCRIPTION = 1024
# A server that lists for ever would hold the turn.
MAX_PAGES = 20
CLOSING = 8.0

LIST, READ, PROMPT = "list_resources", "read_resource", "get_prompt"


class _Entry:
    """A server with its connection of this process, if there is one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop: asyncio.AbstractEventLoop | None = None
        self.lock: asyncio.Lock | None = None
        self.connection: Connection | None = None
        # What it listed last, for a turn in which it can't be reached.
        self.tools: list[Any] | None = None
        self.has_resources = False

    def renew(self) -> None:
        """Leave behind what belongs to the process that this one was forked from."""
        # Takes a second, which is none of the server's time and must not hold other calls up.
        import_module("mcp")
        here = background.loop()
        if self.loop is not here:
            self.loop, self.lock, self.connection = here, asyncio.Lock(), None

    async def request(self, work: Work[T], token: str | None) -> T:
        """Do `work(client)`, on a new connection where the last one is gone."""
        try:
            return await (await self._connected(token)).request(work, token)
        except NotSent:
            return await (await self._connected(token)).request(work, token)

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self, token: str | None) -> Connection:
        assert self.lock is not None
        async with self.lock:
            if self.connection is not None and not self.connection.alive:
                await self.close()
            if self.connection is None:
                fresh = Connection(self.server)
                await fresh.open(token)
                self.connection = fresh
            return self.connection


class Servers:
    """The servers of one agent object; threads may share it."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._entries = {name: _Entry(server) for name, server in servers.items()}
        # A session that nobody closed must not leave processes behind.
        self._finalizer = weakref.finalize(self, _abandon, self._entries)
        self._finalizer.atexit = False

    def request(self, name: str, work: Work[T], env: Env | None = None) -> T:
        """Do `work(client)` with a server and wait for it; raises ToolError."""
        entry = self._entries.get(name)
        if entry is None:
            there = ", ".join(self._entries) or "none"
            raise ConfigurationError(f"There is no MCP server {brief(name)}; there are: {there}.")
        token = entry.server.resolve()
        entry.renew()
        return background.finish(background.submit(entry.request(work, token)), env)

    def tools(self, names: Iterable[str], taken: Iterable[str], env: Env | None) -> list[Tool]:
        """Give the tools of some servers, asked at the same time.

        One that can't be reached gives what it had before, in this session; else nothing. A
        warning is logged, and `env.metadata["mcp_unavailable"]` says why.
        """
        wanted = list(names)
        self._ask([self._entries[name] for name in wanted], env)
        return self.known(wanted, taken)

    def known(self, names: Iterable[str], taken: Iterable[str]) -> list[Tool]:
        """Give the tools that servers listed before; nothing is asked."""
        used = set(taken)
        made: list[Tool] = []
        for name in names:
            for tool in _tools(self, self._entries[name], used):
                used.add(tool.name)
                made.append(tool)
        return made

    def close(self) -> None:
        """End every connection and process; the next use connects again."""
        closing = [
            background.submit(entry.close())
            for entry in self._entries.values()
            if entry.connection is not None and entry.loop is background.loop()
        ]
        wait(closing, timeout=CLOSING)

    def _ask(self, entries: Iterable[_Entry], env: Env | None) -> None:
        asked = []
        for entry in entries:
            entry.renew()
            try:
                work = entry.request(_list, entry.server.resolve())
            except ToolError as error:
                _unavailable(entry, error, env)
            else:
                asked.append((entry, background.submit(work)))
        try:
            for entry, future in asked:
                try:
                    entry.tools, entry.has_resources = background.finish(future, env)
                except ToolError as error:
                    _unavailable(entry, error, env)
        finally:
            for _, future in asked:
                future.cancel()


class ServerTool(Tool):
    """A tool of a server; the server checks the arguments."""

    def __init__(
        self,
        gate: str,
        call: Callable[[dict[str, Any], Env | None], ToolResult],
        **declared: Any,
    ) -> None:
        self.mcp = gate
        self._call = call
        super().__init__(self.execute, **declared)

    def execute(self, **arguments: Any) -> ToolResult:
        """Call the tool outside any turn."""
        return self._call(arguments, None)

    def run(self, arguments: Mapping[str, Any], env: Env | None = None) -> ToolResult:
        """Send the call to the server and give its result."""
        return self._call(dict(arguments), env)


async def _list(client: Any) -> tuple[list[Any], bool]:
    capabilities = client.server_capabilities
    tools = await _pages(client.list_tools, "tools") if capabilities.tools is not None else []
    # Many servers say that they have resources, and have none.
    return tools, capabilities.resources is not None and any(await _resources(client))


async def _resources(client: Any) -> tuple[list[Any], list[Any]]:
    found = await _optional(client.list_resources, "resources")
    return found, await _optional(client.list_resource_templates, "resource_templates")


async def _optional(fetch: Callable[..., Any], what: str) -> list[Any]:
    from mcp import MCPError
    from mcp_types import METHOD_NOT_FOUND

    try:
        return await _pages(fetch, what)
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        return []


async def _pages(fetch: Callable[..., Any], what: str) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await fetch(cursor=cursor)
        found.extend(getattr(page, what))
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def _tools(servers: Servers, entry: _Entry, taken: set[str]) -> Iterator[Tool]:
    """Make the tools that a server listed, and those that read its resources."""
    name = entry.server.name
    # Of several with one name, the server could only mean one.
    own = {tool.name: tool for tool in reversed(entry.tools or ())}
    for listed in reversed(own.values()):
        yield ServerTool(
            f"{name}/{listed.name}",
            _calling(servers, name, listed.name),
            name=offered_name(name, listed.name, taken),
            description=_described(listed),
            parameters=schema(listed.input_schema),
        )
    if entry.has_resources:
        for made in (_list_tool(servers, name, taken), _read_tool(servers, name, taken)):
            # What the server calls so itself goes first.
            if str(made.mcp).partition("/")[2] not in own:
                yield made


def _described(listed: Any) -> str:
    text = clean_text(listed.description or listed.title or "").strip()
    text = text or f"The tool {clean_text(listed.name)}."
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 1]}…"


def _calling(servers: Servers, server: str, tool: str) -> Callable[..., ToolResult]:
    def call(arguments: dict[str, Any], env: Env | None) -> ToolResult:
        return results.of_call(
            servers.request(server, lambda client: client.call_tool(tool, arguments), env)
        )

    return call


def _list_tool(servers: Servers, server: str, taken: set[str]) -> Tool:
    def call(arguments: dict[str, Any], env: Env | None) -> ToolResult:
        return ToolResult(results.listed(*servers.request(server, _resources, env)))

    return ServerTool(
        f"{server}/{LIST}",
        call,
        name=offered_name(server, LIST, taken),
        description=f"List what can be read with {server}__{READ}.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
    )


def _read_tool(servers: Servers, server: str, taken: set[str]) -> Tool:
    def call(arguments: dict[str, Any], env: Env | None) -> ToolResult:
        uri = arguments.get("uri")
        if not isinstance(uri, str) or not uri:
            raise ToolError("Give the uri of what is to be read.")
        found = servers.request(server, lambda client: client.read_resource(uri), env)
        return ToolResult(results.of_resource(found))

    uri = {"type": "string", "description": f"As {server}__{LIST} gives it."}
    return ServerTool(
        f"{server}/{READ}",
        call,
        name=offered_name(server, READ, taken),
        description=f"Read a resource of {server} by its uri.",
        parameters={
            "type": "object",
            "properties": {"uri": uri},
            "required": ["uri"],
            "additionalProperties": False,
        },
    )


def _unavailable(entry: _Entry, error: ToolError, env: Env | None) -> None:
    logger.warning("server=%s has no list of tools: %s", entry.server.name, error)
    if env is not None:
        env.metadata.setdefault("mcp_unavailable", {})[entry.server.name] = str(error)


def _abandon(entries: Mapping[str, _Entry]) -> None:
    """Close what a collected object held; runs wherever the collector does, and never waits."""
    for entry in entries.values():
        connection, loop = entry.connection, entry.loop
        if connection is not None and loop is background.current():
            background.soon(_close_soon, connection)


def _close_soon(connection: Connection) -> None:
    closing.add(task := asyncio.ensure_future(connection.close()))
    task.add_done_callback(closing.discard)


# The event loop itself keeps only weak references to tasks.
closing: set[asyncio.Future[None]] = set()
