"""Which addresses are public, judged by lists of our own: those of Python change with its release."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any

from nexo_django.exceptions import ConfigurationError, brief

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's special-purpose registry, and the rest that is nobody's host.
NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        # Also where clouds answer for a machine's credentials.
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        # Azure's own services answer here inside every virtual network.
        "168.63.129.16/32",
    )
)
# Everything public is in here; mapped, compatible, NAT64 and local addresses are not.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = tuple(
    IPv6Network(text)
    # Teredo and other protocols, documentation, 6to4, documentation again.
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
# The middle of an ISATAP address, before the IPv4 address that it leads to.
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_public(address: Address) -> bool:
    """Whether an address is one of the open internet, which anybody may reach."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_4)
    if address.scope_id is not None or address not in PUBLIC_6:
        return False
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in network for network in NOT_PUBLIC_6)


def parsed(values: Iterable[Any]) -> list[Address]:
    """Give addresses in their order, each once; raises ValueError for what is none."""
    return list(dict.fromkeys(ip_address(str(value)) for value in values))


def networks(values: Any, where: str) -> tuple[Network, ...]:
    """Read networks such as "10.1.0.0/16", or raise ConfigurationError."""
    if isinstance(values, str | bytes | bool) or not isinstance(values, Iterable):
        raise ConfigurationError(f'{where} is {brief(values)}; give a list, ["10.1.0.0/16"].')
    try:
        return tuple(ip_network(value) for value in values)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}; write networks as '10.1.0.0/16'.") from None


def within(address: Address, listed: Iterable[Network]) -> bool:
    """Whether an address is in one of the networks."""
    return any(address in network for network in listed)
