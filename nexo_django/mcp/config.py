"""What an agent declares of its MCP servers, checked before anything is started.

No text made here shows a value of env, headers or token: they hold secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nexo_django import conf
from nexo_django.exceptions import ConfigurationError, ToolError, brief

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,31}")
STDIO, HTTP = ("command", "args", "env", "cwd"), ("url", "headers", "token")
KEYS = (*STDIO, *HTTP, "timeout")
# What a server needs of the site's environment to run at all; its secrets are not among it.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
# Shorter values are no secrets, and to replace them would spoil texts.
SHORTEST_SECRET = 6
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Token = str | Callable[[], Any]


@dataclass(frozen=True)
class Server:
    """One server of `Agent.mcp`: a command that is run, or the address of one that runs."""

    name: str
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: Token | None = field(default=None, repr=False)
    own_timeout: float | None = None

    @property
    def timeout(self) -> float:
        """Seconds that a call may take."""
        return conf.get("TIMEOUT") if self.own_timeout is None else self.own_timeout

    def environment(self) -> dict[str, str]:
        """Give the environment of the server's process."""
        kept = {key: os.environ[key] for key in INHERITED if key in os.environ}
        return {**kept, **self.env}

    def resolve(self) -> str | None:
        """Give the token as it is now; called for every connection and call."""
        if not callable(self.token):
            return self.token
        try:
            token = self.token()
        except Exception as error:
            # Its text may hold what it was made from.
            raise ToolError(
                f"The token of the MCP server {self.name!r} could not be had: "
                f"{type(error).__name__}."
            ) from None
        if token is not None and (not isinstance(token, str) or not _fits_header(token)):
            raise ToolError(f"The token of the MCP server {self.name!r} is no text for a header.")
        return token or None

    def redacted(self, text: str, token: str | None = None) -> str:
        """Replace what is secret in a text that a server or a library made."""
        fixed = self.token if isinstance(self.token, str) else None
        secrets = {token, fixed, *self.env.values(), *self.headers.values()}
        for secret in sorted((s for s in secrets if s), key=len, reverse=True):
            if len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def servers(agent: str, given: Any) -> dict[str, Server]:
    """Check an agent's `mcp`, and give its servers by name."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{agent}.mcp is a {type(given).__name__}; give a dictionary such as {{"time": '
            f'{{"command": "mcp-server-time"}}}}.'
        )
    if given and find_spec("mcp") is None:
        raise ConfigurationError(
            f'{agent}.mcp needs the package mcp; install it with pip install "nexo-django[mcp]".'
        )
    return {name: _server(f"{agent}.mcp", name, value) for name, value in given.items()}


def _server(where: str, name: Any, given: Any) -> Server:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{where} has a server named {brief(name)}; a name is 1 to 32 letters, digits, _, - or ."
        )
    where = f'{where}["{name}"]'
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{where} is a {type(given).__name__}; give {{"command": ...}} or {{"url": ...}}.'
        )
    for key in given:
        if key not in KEYS:
            near = get_close_matches(str(key), KEYS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The keys are {', '.join(KEYS)}."
            raise ConfigurationError(f"{where} has no key {brief(key)}. {hint}")
    if ("command" in given) == ("url" in given):
        raise ConfigurationError(f"{where} needs either a command or a url.")
    alien = [key for key in (HTTP if "command" in given else STDIO) if key in given]
    if alien:
        kind = "a command" if "command" in given else "a url"
        raise ConfigurationError(f"{where} has {kind}, which goes without {', '.join(alien)}.")
    refuse = partial(_refuse, where)
    made = _stdio(given, refuse) if "command" in given else _http(given, refuse)
    seconds = given.get("timeout")
    if seconds is not None and not _is_seconds(seconds):
        refuse("timeout", "a number of seconds greater than 0")
    return Server(name, own_timeout=seconds, **made)


def _stdio(given: Mapping[str, Any], refuse: Callable[[str, str], None]) -> dict[str, Any]:
    args, env, cwd = given.get("args", ()), given.get("env") or {}, given.get("cwd")
    if not _is_text(given["command"]):
        refuse("command", "the program's name or path")
    if not isinstance(args, list | tuple) or not all(_is_argument(value) for value in args):
        refuse("args", "a list of texts")
    if not isinstance(env, Mapping) or not all(
        _is_text(key) and "=" not in key and _is_argument(value) for key, value in env.items()
    ):
        refuse("env", "a dictionary of texts")
    if cwd is not None and not isinstance(cwd, Path) and not _is_text(cwd):
        refuse("cwd", "a folder")
    folder = None if cwd is None else str(cwd)
    command = given["command"]
    return {"command": command, "args": tuple(args), "env": dict(env), "cwd": folder}


def _http(given: Mapping[str, Any], refuse: Callable[[str, str], None]) -> dict[str, Any]:
    url, headers, token = given["url"], given.get("headers") or {}, given.get("token")
    if not _is_url(url):
        refuse("url", "an http:// or https:// address without a password in it")
    if not isinstance(headers, Mapping) or not all(
        isinstance(key, str) and _HEADER.fullmatch(key) and _fits_header(value)
        for key, value in headers.items()
    ):
        refuse("headers", "a dictionary of texts that a header can hold")
    if token is not None and not callable(token) and not (_fits_header(token) and token):
        refuse("token", "a text, or a function without arguments that gives one")
    if token is not None and "authorization" in {key.lower() for key in headers}:
        refuse("headers", "without Authorization where there is a token")
    return {"url": url, "headers": dict(headers), "token": token}


def _refuse(where: str, key: str, must: str) -> None:
    raise ConfigurationError(f"{where} has a wrong {key}; it must be {must}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\x00" not in value


def _is_argument(value: Any) -> bool:
    return isinstance(value, str) and "\x00" not in value


def _fits_header(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and isfinite(value) and value > 0


def _is_url(value: Any) -> bool:
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        return False
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and "@" not in parts.netloc
            and parts.port != 0
        )
    except ValueError:
        return False
