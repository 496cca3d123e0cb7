"""Who may use which chat: the site's own hook decides, at every request, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asgiref.sync import async_to_sync
from django.http import Http404, HttpRequest
from django.utils.module_loading import import_string

from nexo_django import conf, prompts, registry
from nexo_django.exceptions import AgentNotRegistered, ConfigurationError, brief
from nexo_django.session import Session
from nexo_django.stores.choice import default_store

LISTED = 200


def hook() -> Any:
    """Give the function of NEXO["ACCESS"], or raise ConfigurationError: nothing is open."""
    path = conf.get("ACCESS")
    if path is None:
        raise ConfigurationError(
            'NEXO["ACCESS"] is not set, so nexo_django.contrib.urls lets nobody in. Name a function'
            " (request, agent_name, conversation) that gives an instance id or None."
        )
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f'NEXO["ACCESS"] is {path!r}, which can\'t be imported: {error}.'
        ) from None
    if isinstance(found, type) or not callable(found):
        raise ConfigurationError(
            f'NEXO["ACCESS"] is {path!r}; it must be a function, or an object that is called.'
        )
    return found


def session_for(request: HttpRequest, agent_name: str, conversation: str) -> Session:
    """Give the session that the hook allows this request, or raise Http404.

    Whatever there is not is refused as what is another's: an agent, a conversation.
    """
    may = hook()
    try:
        agent = registry.get(agent_name)
        conversation = _named(conversation)
    except (AgentNotRegistered, ValueError):
        raise Http404 from None
    return Session.resume(agent, _instance(may, request, agent_name, conversation))


def conversations(request: HttpRequest, agent_name: str) -> Iterator[tuple[str, Session]]:
    """Give the conversations that the hook lists for this request; Http404 if it lists none."""
    may = hook()
    listing = getattr(may, "conversations", None)
    if listing is None:
        raise Http404
    registry.get(agent_name)
    for conversation in list(_said(listing(request, agent_name)) or ())[:LISTED]:
        yield conversation, session_for(request, agent_name, conversation)


def check_store() -> None:
    """Raise ConfigurationError where chats are not in the database."""
    if type(default_store()).__name__ != "DatabaseStore":
        raise ConfigurationError(
            "nexo_django.contrib.urls needs the database store: leave NEXO['SESSION_STORE'] out."
        )


def _instance(may: Any, request: HttpRequest, agent_name: str, conversation: str) -> str:
    given = _said(may(request, agent_name, conversation))
    if given is None or given is False or given == "":
        raise Http404
    try:
        return prompts.instance_id(given)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f'NEXO["ACCESS"] gave {brief(type(given).__name__)}; it must give the instance id as'
            " text or a number, or None to refuse."
        ) from None


def _said(given: Any) -> Any:
    """Wait for what an asynchronous hook gives."""
    if not hasattr(given, "__await__"):
        return given

    async def awaited() -> Any:
        return await given

    return async_to_sync(awaited)()


def _named(conversation: str) -> str:
    if len(conversation) > prompts.MAX_INSTANCE_ID:
        raise ValueError("too long")
    return prompts.instance_id(conversation)
