"""URLs and the hosts that may be fetched: how they are written, and when one fits the other.

A URL is taken apart once, by rules stricter than those of browsers, and what comes out is
both looked at and connected to: no second reading can differ.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urljoin

from nexo_django.exceptions import ConfigurationError, ToolError, brief

PORTS = {"http": 80, "https": 443}
MAX_URL = 8000
MAX_HOST = 253
ANY = "*"
_URL = re.compile(r"(?i)(https?)://([^/?#\\]*)([^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@%\\]+)(?::([0-9]{1,5}))?")
_ENTRY = re.compile(r"(?:([A-Za-z]+)://)?(\[[^\]]+\]|[^/:\[\]]+)(?::([0-9]{1,5}))?")
# Bytes that would end a line or a part of a request, and what parsers disagree about.
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
# What a system takes for an IPv4 address in one of its old forms: 2130706433, 0x7f.1, 127.1.
_NUMBER = re.compile(r"(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
# What stays as it is in a path or a query; the rest of it is percent-encoded.
_SAFE = "%/:?#[]@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart: `host` is a name in its ASCII form, or an address without brackets."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def netloc(self) -> str:
        """The host as a request names it, with its port where that is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{self.netloc}{self.path}"

    def joined(self, location: str) -> Target:
        """Give the target that a redirect from here names."""
        try:
            return target(urljoin(self.url, location.strip(" \t").replace(" ", "%20")))
        except ValueError:
            raise ToolError("The server redirects to something that is no URL.") from None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an allow list; None where it does not say."""

    host: str
    scheme: str | None = None
    port: int | None = None

    def fits(self, target: Target) -> bool:
        """Whether it names the target; without a port only the usual one of the scheme."""
        if self.scheme not in (None, target.scheme):
            return False
        if target.port != (self.port or PORTS[target.scheme]):
            return False
        if self.host.startswith("*."):
            return target.host.endswith(self.host[1:])
        return self.host in (ANY, target.host)


def target(url: str) -> Target:
    """Take a URL apart, or raise ToolError saying what is wrong with it."""
    if len(url) > MAX_URL:
        raise ToolError(f"The URL has {len(url)} characters; {MAX_URL} are allowed.")
    if _UNSAFE.search(url):
        raise ToolError("The URL holds blanks, control characters or backslashes; encode them.")
    found = _URL.fullmatch(url)
    if found is None:
        raise ToolError("The URL must begin with http:// or https:// and name a host.")
    scheme, authority, rest = found[1].lower(), found[2], found[3]
    if "@" in authority:
        raise ToolError("The URL holds a user name or password; leave them out.")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise ToolError("The URL's host or port is not valid.")
    port = int(parts[2]) if parts[2] else PORTS[scheme]
    if not 0 < port < 65536:
        raise ToolError(f"The URL's port {port} is not valid.")
    try:
        host = ascii_host(parts[1])
    except ValueError:
        raise ToolError(f"The URL's host {brief(parts[1])} is not valid.") from None
    path = quote(rest, safe=_SAFE)
    return Target(scheme, host, port, path if path.startswith("/") else f"/{path}")


def ascii_host(host: str) -> str:
    """Give a host as it is looked up: small, in ASCII, without a dot at the end.

    Raises ValueError for what is no host, and for addresses in other forms than the usual one.
    """
    import idna

    if host.startswith("["):
        return str(ipaddress.IPv6Address(host.strip("[]")))
    # Mapped first: there are wide characters for letters and digits, and other dots.
    name = idna.uts46_remap(host[: MAX_HOST + 2], std3_rules=False).lower().removesuffix(".")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return str(ipaddress.IPv4Address(name))
    # IDNError is a ValueError. Names with _ are no host names by the letter, but in use.
    for label in name.split("."):
        if not re.fullmatch(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", label):
            name = idna.encode(name).decode()
            break
    if len(name) > MAX_HOST:
        raise ValueError(host)
    return name


def entries(allow: Any, where: str) -> tuple[Entry, ...]:
    """Read an allow list, or raise ConfigurationError naming the entry that is wrong."""
    if isinstance(allow, str | bytes | Mapping) or not isinstance(allow, Iterable):
        raise ConfigurationError(f'{where} is {brief(allow)}; give a list of hosts, ["a.example"].')
    listed = tuple(allow)
    for value in listed:
        if not isinstance(value, str):
            raise ConfigurationError(f"{where} holds {brief(value)}; an entry is a text.")
    return tuple(_entry(value, where) for value in listed)


def allowed(target: Target, listed: Iterable[Entry]) -> bool:
    """Whether an allow list names a target."""
    return any(entry.fits(target) for entry in listed)


def check(agent: str, allow: Any) -> None:
    """Raise ConfigurationError for an allow list of an agent that can't be used."""
    if allow:
        entries(allow, f"{agent}.fetch_allow")


@lru_cache(maxsize=512)
def _entry(value: str, where: str) -> Entry:
    found = _ENTRY.fullmatch(value)
    scheme = found[1].lower() if found and found[1] else None
    port = int(found[3]) if found and found[3] else None
    if found is None or scheme not in (None, *PORTS) or port == 0 or (port or 1) > 65535:
        raise _wrong(value, where)
    host = found[2]
    if host == ANY:
        return Entry(ANY, scheme, port)
    wild = host.startswith("*.")
    try:
        name = ascii_host(host.removeprefix("*."))
    except ValueError:
        raise _wrong(value, where) from None
    if wild and ("." not in name or name.replace(".", "").isdigit()):
        # "*.com" would be everybody's.
        raise _wrong(value, where)
    return Entry(f"*.{name}" if wild else name, scheme, port)


def _wrong(value: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} holds {brief(value)}; write a host such as 'docs.example.com', '*.example.com' "
        f"for the hosts below it, or '*' for every public one, with 'https://' before it or "
        f"':8443' after it where only that is meant."
    )
