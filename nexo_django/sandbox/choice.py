"""From what an agent declares as its sandbox to the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from nexo_django import conf
from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.sandbox import workspaces
from nexo_django.sandbox.base import Place, Sandbox
from nexo_django.sandbox.local import LocalSandbox
from nexo_django.sandbox.virtual import VirtualSandbox

NAMES = ("virtual", "local", "bubblewrap", "container", "remote")


def resolve(value: Any = None) -> Sandbox:
    """Give the sandbox of that name, or the one given; None is the setting DEFAULT_SANDBOX."""
    declared = conf.get("DEFAULT_SANDBOX") if value is None else value
    if isinstance(declared, Sandbox):
        return declared
    made = _MADE.get(declared) if isinstance(declared, str) else None
    if made is None:
        raise ConfigurationError(
            f"There is no sandbox {brief(declared)}. Give one of {', '.join(NAMES)}, or a Sandbox."
        )
    return made()


class LocalWorkspaces(Sandbox):
    """The sandbox "local" by its name: a directory for each chat under SANDBOX_ROOT."""

    name = "local"
    has_shell = True

    def for_chat(self, place: Place) -> Sandbox:
        """Give the sandbox of the chat's directory."""
        self.check()
        found = workspaces.folder(None, place.agent_name, place.instance_id)
        return _Workspace(found, make=lambda: workspaces.make(found))

    def check(self) -> None:
        """Raise ConfigurationError without the setting: the site says where agents may write."""
        if conf.get("SANDBOX_ROOT") is None:
            raise ConfigurationError(
                "The sandbox 'local' needs a root: give LocalSandbox('/a/directory'), or set "
                'NEXO["SANDBOX_ROOT"].'
            )


class _Workspace(LocalSandbox):
    def discard(self) -> None:
        workspaces.remove(self.root)


def _bubblewrap() -> Sandbox:
    made: Sandbox = import_module("nexo_django.sandbox.bubblewrap").BubblewrapSandbox()
    return made


def _refused(name: str, given: str) -> Callable[[], Sandbox]:
    def refuse() -> Sandbox:
        raise ConfigurationError(f"The sandbox {name!r} is not a name alone: give {given}.")

    return refuse


_MADE: dict[str, Callable[[], Sandbox]] = {
    "virtual": VirtualSandbox,
    "local": LocalWorkspaces,
    "bubblewrap": _bubblewrap,
    "container": _refused("container", "ContainerSandbox(image='python:3.13-slim')"),
    "remote": _refused("remote", "RemoteSandbox('https://sandbox.example', token=...)"),
}
