"""The package's settings: one dict `NEXO`, read live, each key with its rule and default.

Without configured Django settings every key has its default. The environment is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from math import isfinite
from pathlib import PurePath
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.permissions import MODES, Permissions


@dataclass(frozen=True)
class Rule:
    """What a key may be set to: `must` completes "It must be ..." and names the fix."""

    default: Any
    must: str
    fits: Callable[[Any], bool]
    # Whether a value may hold a password, which no text may show.
    secret: bool = False


def _number(value: Any) -> bool:
    # True is an int to Python, and nobody means one second by it.
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _count(default: int) -> Rule:
    return Rule(
        default,
        f"a whole number from 1 up, such as {default}",
        lambda value: _number(value) and isinstance(value, int) and value >= 1,
    )


def _seconds(default: float, *, least: str = "greater than 0") -> Rule:
    zero = least != "greater than 0"
    return Rule(
        default,
        f"a number of seconds {least}, such as {default}",
        lambda value: _number(value) and (value > 0 or (zero and value == 0)),
    )


def _share(default: float) -> Rule:
    return Rule(
        default,
        f"a share of the context window, greater than 0 and at most 1, such as {default}",
        lambda value: _number(value) and 0 < value <= 1,
    )


def _period(default: timedelta) -> Rule:
    return Rule(
        default,
        "a positive datetime.timedelta, such as timedelta(days=7), or None to keep them",
        lambda value: value is None or (isinstance(value, timedelta) and value > timedelta(0)),
    )


def _unavailable(instead: str) -> Rule:
    return Rule(
        None,
        f"left out, since this version does not honour it; {instead}",
        lambda value: value is None,
    )


def _folder(value: Any) -> bool:
    return _text(value) or isinstance(value, PurePath)


def _label(value: Any) -> bool:
    parts = value.split(".") if isinstance(value, str) else ()
    return len(parts) == 2 and all(part.isidentifier() for part in parts)


def _path(value: Any) -> bool:
    parts = value.split(".") if isinstance(value, str) else ()
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _store(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None
    return value in ("database", "memory") or (value.startswith("jsonl:") and len(value) > 6)


RELAYS = ("redis://", "rediss://", "unix://")

RULES: dict[str, Rule] = {
    "DEFAULT_MODEL": Rule("nexo/offline", "a litellm id, such as 'openai/gpt-4o-mini'", _text),
    "SESSION_CHAT_MODEL": Rule(
        None,
        "'app_label.ModelName' of your own chat model, or None for the package's",
        lambda value: value is None or _label(value),
    ),
    "SESSION_STORE": Rule(
        None,
        "'database', 'memory', 'jsonl:/a/directory', or None: the database where the app is"
        " installed",
        _store,
    ),
    "DEFAULT_SANDBOX": Rule(
        "virtual",
        "the name of a sandbox, such as 'virtual', or a sandbox",
        lambda value: value is not None and (_text(value) or not isinstance(value, str | bytes)),
    ),
    "SANDBOX_ROOT": Rule(
        None,
        "a directory for the workspaces of chats, such as '/srv/site/workspaces', or None",
        lambda value: value is None or _text(value) or isinstance(value, PurePath),
    ),
    "DEFAULT_PERMISSIONS": Rule(
        "read_only",
        f"one of {', '.join(map(repr, MODES))}, or a Permissions",
        lambda value: value in MODES or isinstance(value, Permissions),
    ),
    "SKILLS_PATH": Rule(
        None,
        "a folder that holds a folder for each skill, such as BASE_DIR / 'skills', or a list of"
        " such folders",
        lambda value: (
            value is None
            or _folder(value)
            or (isinstance(value, list | tuple) and all(map(_folder, value)))
        ),
    ),
    "TIMEOUT": _seconds(60),
    "TURN_DEADLINE": Rule(
        None,
        "a number of seconds greater than 0, or None for no deadline",
        lambda value: value is None or (_number(value) and value > 0),
    ),
    "TURN_WAIT": _seconds(30, least="from 0 up"),
    "LEASE_SECONDS": _seconds(30),
    "MAX_IN_FLIGHT": _count(64),
    "COMPACT_AT": _share(0.7),
    "COMPACT_TO": _share(0.4),
    "TRUNCATE_LINES": _count(2000),
    "TRUNCATE_BYTES": _count(51_200),
    "TRUNCATE_LINE_CHARS": _count(2000),
    "OUTPUT_RETENTION": _period(timedelta(days=7)),
    "ATTACHMENT_STORAGE": Rule(
        None,
        "the name of one of your STORAGES, or None for the default one",
        lambda value: value is None or (_text(value) and value in settings.STORAGES),
    ),
    "ATTACHMENT_BYTES": _count(10_000_000),
    "ATTACHMENT_COUNT": _count(20),
    "ATTACHMENT_TYPES": Rule(
        ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "text/*"),
        "a list of media types, such as ['image/png', 'text/*']",
        lambda value: isinstance(value, list | tuple) and bool(value) and all(map(_text, value)),
    ),
    "RETENTION": _unavailable("delete chats with session.delete()"),
    "REDACT": _unavailable("redact in your tools and prompts, before the text reaches a session"),
    "ENCRYPTION_KEYS": _unavailable("encrypt the database's volume or its columns"),
    "ACCESS": Rule(
        None,
        "the dotted path of a function (request, agent_name, conversation) that gives an instance"
        " id or None, such as 'mysite.access.instance_id'",
        lambda value: value is None or _path(value),
    ),
    "RELAY": Rule(
        None,
        "a redis:// or rediss:// URL, or None for the database",
        lambda value: value is None or (_text(value) and value.startswith(RELAYS)),
        secret=True,
    ),
    "WEB_SEARCH": Rule(
        None,
        "the dotted path of a function (query, count) that gives a list of {title, url, snippet},"
        " such as 'mysite.search.search'",
        lambda value: value is None or _path(value),
    ),
    "BACKGROUND": Rule(
        None,
        "'celery', 'tasks', or None for threads of the web process",
        lambda value: value in (None, "celery", "tasks"),
    ),
}

DEFAULTS: dict[str, Any] = {key: rule.default for key, rule in RULES.items()}


def configured() -> bool:
    """Whether Django's settings are there; a settings module that fails raises."""
    try:
        settings.INSTALLED_APPS  # noqa: B018
    except ImproperlyConfigured as error:
        # Django has no name for this case, and other failures must not pass as "no settings".
        if "settings are not configured" not in str(error):
            raise
        return False
    return True


def get(key: str) -> Any:
    """Give a setting as it is now, or raise ConfigurationError for what can't be right."""
    given = _given()
    for problem in _problems(given, (key,)):
        raise ConfigurationError(problem)
    return given.get(key, RULES[key].default)


def problems() -> list[str]:
    """List everything that is wrong with the settings, for the system check."""
    try:
        given = _given()
    except ConfigurationError as error:
        return [str(error)]
    return list(_problems(given, tuple(RULES)))


def check() -> None:
    """Raise ConfigurationError with everything that is wrong, before anything is done."""
    if wrong := problems():
        raise ConfigurationError(" ".join(wrong))


class _Settings:
    """The settings as attributes: `NEXO.TIMEOUT` is `get("TIMEOUT")`."""

    def __getattr__(self, key: str) -> Any:
        if not key.isupper():
            raise AttributeError(key)
        return get(key)

    def __dir__(self) -> list[str]:
        return list(RULES)


NEXO = _Settings()


def _given() -> Mapping[str, Any]:
    given = getattr(settings, "NEXO", {}) if configured() else {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ConfigurationError(f"NEXO is a {kind}; write NEXO = {{...}} in your settings.")
    return given


def _problems(given: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for key in (*given, *keys):
        if key not in RULES:
            yield _unknown(key)
    for key in keys:
        if key in given and key in RULES and not RULES[key].fits(given[key]):
            yield _wrong(key, given[key])
    if {"COMPACT_AT", "COMPACT_TO"} & set(keys):
        yield from _crossed(given)


def _unknown(key: Any) -> str:
    near = get_close_matches(str(key).upper(), RULES, n=1)
    hint = f'Did you mean "{near[0]}"?' if near else f"The keys are {', '.join(RULES)}."
    return f"NEXO has no key {brief(key)}. {hint}"


def _wrong(key: str, value: Any) -> str:
    rule = RULES[key]
    # What nothing honours may be a secret, such as a key.
    shown = "set" if rule.secret or rule.must.startswith("left out") else brief(value)
    return f'NEXO["{key}"] is {shown}. It must be {rule.must}.'


def _crossed(given: Mapping[str, Any]) -> Iterator[str]:
    at, to = (given.get(key, DEFAULTS[key]) for key in ("COMPACT_AT", "COMPACT_TO"))
    if _number(at) and _number(to) and to >= at:
        yield (
            f'NEXO["COMPACT_TO"] is {to} and NEXO["COMPACT_AT"] is {at}. '
            "COMPACT_TO must be the smaller one: compaction starts at COMPACT_AT and frees"
            " room down to COMPACT_TO."
        )
