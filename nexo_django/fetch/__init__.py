"""Fetch: reading pages of the hosts that an agent allows, and nothing inside the own network.

A page is read only where the agent's permissions allow the capability `fetch` and its
`fetch_allow` names the host. Every address that the name resolves to must be public, and the
connection goes to exactly the one that was looked at; each redirect begins anew.
"""

from __future__ import annotations

from nexo_django.fetch.hosts import check
from nexo_django.fetch.tool import Fetch, fetch, tools

__all__ = ["Fetch", "check", "fetch", "tools"]
