"""System checks: what would only fail at the first prompt, said at `manage.py check`.

docs/reference/checks.md explains each by its id.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Tags
from django.db import connections
from django.urls import get_resolver

from nexo_django import conf, registry
from nexo_django.exceptions import ConfigurationError

if TYPE_CHECKING:
    from nexo_django.agent import Agent
    from nexo_django.tools import Tool

DOCS = "docs/reference/checks.md"
SQLITE = (
    '{"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL", "timeout": 30}'
)
# How alike two names must be for one to be a slip of the other.
NEAR = 0.8

# A layer of a stack, and the one that it must be inside of.
INSIDE = (
    ("MaxIterations", "ToolResultLoop", "it would count turns, not model calls"),
    (
        "DefaultCompactionPipeline",
        "ToolResultLoop",
        "a long run of tool results would fill the context before the turn ends",
    ),
    ("DefaultToolPipeline", "ToolResultLoop", "the model would never see its tools' results"),
)


def problem(number: str, message: str, fix: str, obj: Any = None) -> CheckMessage:
    """Make the message of a check: an error for E, a warning for W."""
    kind = checks.Error if number.startswith("E") else checks.Warning
    hint = f"{fix} ({number} in nexo_django's {DOCS})"
    return kind(message, hint=hint, obj=obj, id=f"nexo_django.{number}")


@checks.register
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the NEXO setting and the model that it names."""
    wrong = conf.problems()
    if wrong:
        return [problem("E001", text, "Correct NEXO in your settings.") for text in wrong]
    return [*_chat_model(conf.get("SESSION_CHAT_MODEL")), *_search()]


@checks.register
def check_agents(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check every registered agent."""
    found = list(_duplicates(registry.duplicates()))
    if not conf.problems():
        for agent in registry.agents().values():
            found.extend(_agent(agent))
    return found


@checks.register
def check_skills(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the skills that no agent may use yet; an agent's own are part of its check."""
    if conf.problems() or conf.get("SKILLS_PATH") is None:
        return []
    # Not at the top: it brings pydantic, which is slow to import.
    from nexo_django import skills

    fix = "Correct the file, or move the folder out of SKILLS_PATH."
    return [problem("W020", text, fix) for text in skills.problems()]


@checks.register
def check_databases(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check how the databases are configured, without a connection."""
    return [found for alias in connections for found in _configured(alias)]


@checks.register(Tags.database)
def check_connected_databases(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check what the databases themselves say."""
    return [found for alias in databases or () for found in _connected(alias)]


@checks.register(Tags.urls)
def check_access(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that whoever includes the package's addresses says who may use which chat."""
    if conf.problems() or not _served():
        return []
    from nexo_django.contrib import access

    try:
        access.hook()
        access.check_store()
    except ConfigurationError as error:
        return [problem("E009", str(error), "See docs/how-to/sse.md.")]
    return []


def _served() -> bool:
    """Whether a site's addresses lead to the package's views."""
    try:
        return _leads(get_resolver())
    except Exception:
        # A URLconf that can't be loaded is told of by Django's own check.
        return False


def _leads(pattern: Any) -> bool:
    if hasattr(pattern, "url_patterns"):
        return any(map(_leads, pattern.url_patterns))
    return str(getattr(pattern.callback, "__module__", "")) == "nexo_django.contrib.views"


def _chat_model(label: str | None) -> Iterator[CheckMessage]:
    if label is None or label.lower() == "nexo_django.chat":
        return
    named = f'NEXO["SESSION_CHAT_MODEL"] is {label!r}'
    try:
        apps.get_model(label)
    except (LookupError, ValueError) as error:
        yield problem("E002", f"{named}, which is no model: {error}", "Leave the key out.")
    else:
        yield problem("E008", f"{named}; only the package's own works.", "Leave the key out.")


def _search() -> Iterator[CheckMessage]:
    if conf.get("WEB_SEARCH") is None:
        return
    # Not at the top: the tools bring pydantic, which is slow to import.
    from nexo_django.tools import web_search

    if wrong := web_search.problem():
        yield problem("E001", wrong, "Name a function (query, count), or leave the key out.")


def _duplicates(found: Mapping[str, Sequence[str]]) -> Iterator[CheckMessage]:
    for name, paths in found.items():
        yield problem(
            "E003",
            f"Several agents are named {name!r}: {', '.join(paths)}. They would share chats.",
            "Give each class a `name` of its own, or `abstract = True` to a base class.",
        )


def _agent(cls: type[Agent]) -> Iterator[CheckMessage]:
    try:
        agent = cls()
    except TypeError:
        # Its constructor takes arguments that only `resume` knows.
        return
    yield from _misspelled(cls)
    # The later ones build on what the earlier ones found right.
    found = list(_declaration(agent))
    yield from found or [*_useless(agent), *(list(_tools(agent)) or _stack(agent))]


def _misspelled(cls: type[Agent]) -> Iterator[CheckMessage]:
    from nexo_django.agent import Agent

    known = [name for name in dir(Agent) if not name.startswith("_")]
    given = {name for base in cls.__mro__ if base not in Agent.__mro__ for name in vars(base)}
    for name in sorted(given - set(known)):
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=NEAR)
        if near and not name.startswith("_"):
            yield problem(
                "W004",
                f"{cls.__name__}.{name} is no attribute of an agent. Did you mean {near[0]!r}?",
                "Rename it; one that is meant to be your own takes a name that is less like ours.",
                cls,
            )


def _tools(agent: Agent) -> Iterator[CheckMessage]:
    # Not at the top: pydantic, which makes the schemas, is slow to import.
    from nexo_django.tools import resolve

    try:
        tools = resolve(agent.tools)
        for tool in tools:
            tool.definition()
    except Exception as error:
        yield problem(
            "E004",
            f"{type(agent).__name__}.tools can't be offered to a model: {error}",
            "Give functions with type hints that JSON can express, or Tool objects.",
            type(agent),
        )
        return
    for tool in tools:
        yield from _unsaid(tool, agent)


def _unsaid(tool: Tool, agent: Agent) -> Iterator[CheckMessage]:
    """Warn of what the model would have to guess."""
    missing = [] if tool.description else ["docstring"]
    for name, schema in tool.parameters.get("properties", {}).items():
        if not set(schema) - {"title", "default"}:
            missing.append(f"type for {name!r}")
    if missing:
        yield problem(
            "W005",
            f"The tool {tool.name!r} of {type(agent).__name__} has no {' and no '.join(missing)}: "
            f"the model gets nothing to go by.",
            "Say in its docstring what it is for, and annotate its parameters.",
            type(agent),
        )


def _declaration(agent: Agent) -> Iterator[CheckMessage]:
    try:
        agent.check()
    except ConfigurationError as error:
        yield problem("E005", str(error), "Correct the agent's class.", type(agent))


def _useless(agent: Agent) -> Iterator[CheckMessage]:
    """Warn of MCP servers that nothing lets be used, and of leave for servers that are not there."""
    named = type(agent).__name__
    granted = agent.granted()
    for name in agent.mcp:
        if not granted.offers_server(name):
            yield problem(
                "W021",
                f"{named}.mcp has the server {name!r}, of which no tool can ever be allowed.",
                f'Add "{name}/*" or single tools to mcp_allow, or give other permissions.',
                type(agent),
            )
    for allowed in agent.mcp_allow:
        server, slash, _ = allowed.partition("/")
        if not slash or server not in agent.mcp:
            yield problem(
                "W021",
                f"{named}.mcp_allow has {allowed!r}, which is no tool of a server in {named}.mcp.",
                'Write it as "server/tool", or "server/*" for all of them.',
                type(agent),
            )


def _stack(agent: Agent) -> Iterator[CheckMessage]:
    for message in _faults(agent):
        yield problem(
            "E006",
            message,
            "The order is SessionLog, SystemPrompt, ToolResultLoop, MaxIterations, "
            "DefaultCompactionPipeline, DefaultToolPipeline, completion.",
            type(agent),
        )


def _faults(agent: Agent) -> Iterator[str]:
    from nexo_django.agent import stack

    named = f"{type(agent).__name__}.pipeline()"
    try:
        pipeline = stack(agent)
    except ConfigurationError as error:
        yield str(error)
        return
    except Exception as error:
        yield f"{named} can't work: it raises {type(error).__name__}: {error}"
        return
    places: dict[str, int] = {}
    for place, layer in enumerate(pipeline.layers):
        for base in getattr(layer.cls, "__mro__", ()):
            places.setdefault(base.__name__, place)
    for fault in _order(places, has_app=pipeline.app is not None):
        yield f"{named} can't work: {fault}"


def _order(places: Mapping[str, int], *, has_app: bool) -> Iterator[str]:
    if not has_app:
        yield "it has no terminal app; end it with .run(self.completion())."
    if places.get("SessionLog") != 0:
        yield "SessionLog must be the outermost layer; it brings the session's messages."
    for inner, outer, why in INSIDE:
        if outer in places and places.get(inner, places[outer] + 1) < places[outer]:
            yield f"{inner} must be inside {outer}; {why}."


def _configured(alias: str) -> Iterator[CheckMessage]:
    config = connections.settings[alias]
    options = config.get("OPTIONS") or {}
    if config.get("ATOMIC_REQUESTS"):
        yield problem(
            "W001",
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS on, and a turn can't run in a transaction.",
            "Turn it off, or decorate the views that prompt with transaction.non_atomic_requests.",
        )
    if config.get("CONN_MAX_AGE") != 0 and getattr(settings, "ASGI_APPLICATION", None):
        yield problem(
            "W002",
            f"DATABASES[{alias!r}] has CONN_MAX_AGE set under ASGI, where each thread would keep "
            f"a connection open.",
            "Set CONN_MAX_AGE to 0; on PostgreSQL, OPTIONS['pool'] may keep connections.",
        )
    mode = str(options.get("transaction_mode")).upper()
    if _vendor(config) == "sqlite3" and mode not in ("IMMEDIATE", "EXCLUSIVE"):
        yield problem(
            "W003",
            f"DATABASES[{alias!r}] is SQLite without IMMEDIATE transactions: turns at the same "
            f"time fail with 'database is locked'.",
            f'Write DATABASES["{alias}"]["OPTIONS"] = {SQLITE}',
        )
    if _vendor(config) == "mysql" and options.get("charset", "utf8mb4") != "utf8mb4":
        yield problem(
            "W007",
            f"DATABASES[{alias!r}] connects with charset {options['charset']!r}, which can't hold "
            f"every character.",
            "Set OPTIONS['charset'] to 'utf8mb4'.",
        )


def _connected(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if connection.vendor == "sqlite" and _asked(alias, "PRAGMA journal_mode") == "delete":
        yield problem(
            "W003",
            f"The SQLite database {alias!r} has no write-ahead log: readers wait for writers.",
            f'Write DATABASES["{alias}"]["OPTIONS"] = {SQLITE}',
        )
    if connection.vendor == "mysql":
        charset = _asked(alias, "SELECT @@character_set_database")
        if charset != "utf8mb4":
            yield problem(
                "W007",
                f"The database of {alias!r} has the character set {charset}, which can't hold "
                f"every character.",
                "ALTER DATABASE ... CHARACTER SET utf8mb4, before you migrate.",
            )


def _asked(alias: str, sql: str) -> str:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return str(cursor.fetchone()[0])


def _vendor(config: Mapping[str, Any]) -> str:
    return str(config.get("ENGINE", "")).rpartition(".")[2]
