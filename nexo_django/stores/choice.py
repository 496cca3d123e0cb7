"""Which store keeps the sessions: by the settings, and without the app the process's memory."""

from __future__ import annotations

import logging
from functools import cache

from django.apps import apps
from django.conf import settings
from django.core.exceptions import AppRegistryNotReady

from nexo_django import conf
from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.stores.base import Store
from nexo_django.stores.memory import MemoryStore

logger = logging.getLogger(__name__)

APP = "nexo_django"
CHAT_MODEL = f"{APP}.Chat"
CHOICES = "'database', 'memory' or 'jsonl:/a/directory'"


def default_store() -> Store:
    """Give the store that the settings name.

    Without Django's settings, or without the app among INSTALLED_APPS, that is the memory of
    the process unless NEXO["SESSION_STORE"] says otherwise, which is logged once. Raises ConfigurationError for
    settings that can't be honoured, and where Django is not set up yet.
    """
    _check_chat_model(conf.get("SESSION_CHAT_MODEL"))
    named = conf.get("SESSION_STORE")
    if named or _installed():
        return store_for(named or "database")
    if conf.configured():
        _tell_of_memory()
    return store_for("memory")


def store_for(value: str) -> Store:
    """Give the store of a value of NEXO["SESSION_STORE"]."""
    kind, _, rest = value.partition(":")
    if value == "memory":
        return MemoryStore()
    if kind == "jsonl" and rest:
        from nexo_django.stores.jsonl import JSONLStore

        return JSONLStore(rest)
    if value != "database":
        raise ConfigurationError(f"There is no session store {brief(value)}; take {CHOICES}.")
    if not _installed():
        raise ConfigurationError(
            f"The session store 'database' needs {APP!r} in INSTALLED_APPS; add it and migrate."
        )
    from nexo_django.stores.database import DatabaseStore

    return DatabaseStore()


@cache
def _tell_of_memory() -> None:
    """Warn, once in a process: a site that forgot the app would only lose its chats."""
    logger.warning(
        "%r is not in INSTALLED_APPS: sessions are kept in this process's memory and lost with it;"
        " add it and migrate, or set NEXO['SESSION_STORE'] = 'memory'.",
        APP,
    )


def _installed() -> bool:
    """Whether the app is installed; its models can't be asked for before Django is set up."""
    if not conf.configured():
        return False
    try:
        return apps.is_installed(APP)
    except AppRegistryNotReady:
        if not any(entry.split(".")[0] == APP for entry in settings.INSTALLED_APPS):
            return False
        raise ConfigurationError(
            "Django is not set up, so the database can't be used: call django.setup() before"
            " the first session."
        ) from None


def _check_chat_model(label: str | None) -> None:
    if label is None or label.lower() == CHAT_MODEL.lower():
        return
    if apps.ready:
        try:
            apps.get_model(label)
        except (LookupError, ValueError):
            raise ConfigurationError(
                f'NEXO["SESSION_CHAT_MODEL"] is {brief(label)}, and no such model is installed; '
                f"leave it out for the package's own."
            ) from None
    raise ConfigurationError(
        f'NEXO["SESSION_CHAT_MODEL"] is {brief(label)}, but chat models of a host are not '
        f"supported yet; leave it out or write {CHAT_MODEL!r}."
    )
