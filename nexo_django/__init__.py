"""Durable LLM agents for Django.

The public names are imported when they are first used: neither models nor litellm come with
`import nexo_django`, and settings need not be configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexo_django.agent import Agent as Agent
    from nexo_django.events import Event as Event
    from nexo_django.messages import Message as Message
    from nexo_django.messages import ToolCall as ToolCall
    from nexo_django.messages import Usage as Usage
    from nexo_django.permissions import Permissions as Permissions
    from nexo_django.pipeline import Env as Env
    from nexo_django.pipeline import Pipeline as Pipeline
    from nexo_django.reply import Reply as Reply
    from nexo_django.sandbox.base import Sandbox as Sandbox
    from nexo_django.sandbox.bubblewrap import BubblewrapSandbox as BubblewrapSandbox
    from nexo_django.sandbox.container import ContainerSandbox as ContainerSandbox
    from nexo_django.sandbox.local import LocalSandbox as LocalSandbox
    from nexo_django.sandbox.remote import RemoteSandbox as RemoteSandbox
    from nexo_django.sandbox.virtual import VirtualSandbox as VirtualSandbox
    from nexo_django.session import Session as Session
    from nexo_django.tools import Tool as Tool
    from nexo_django.tools import tool as tool

__version__ = "0.1.0"

_HOMES = {
    "Agent": "agent",
    "BubblewrapSandbox": "sandbox.bubblewrap",
    "ContainerSandbox": "sandbox.container",
    "Env": "pipeline",
    "Event": "events",
    "LocalSandbox": "sandbox.local",
    "Message": "messages",
    "Permissions": "permissions",
    "Pipeline": "pipeline",
    "RemoteSandbox": "sandbox.remote",
    "Reply": "reply",
    "Sandbox": "sandbox.base",
    "Session": "session",
    "Tool": "tools",
    "ToolCall": "messages",
    "Usage": "messages",
    "VirtualSandbox": "sandbox.virtual",
    "tool": "tools",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
