"""JSON and event-stream views of sessions; docs/reference/http.md describes each.

They are plain views: Django runs them in a thread where the site is asynchronous. Only what
streams differs, since each kind of server wants its own kind of iterator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)

from nexo_django.contrib import access, envelope, running, watching
from nexo_django.contrib.envelope import Refused
from nexo_django.contrib.reading import Cursor, Source, State
from nexo_django.contrib.requests import body, endpoint, number
from nexo_django.contrib.running import Queued, Started
from nexo_django.contrib.watching import Open, Watch
from nexo_django.decisions import MOST_BY
from nexo_django.exceptions import SessionNotFound
from nexo_django.session import Session

EVENT_STREAM = "text/event-stream"
HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    # Proxies, and GZipMiddleware, would hold the events back.
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}
PAGE, LONGEST_PAGE = 50, 200
# What a browser may show; everything else is saved.
SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


@endpoint("GET")
def chats(request: HttpRequest, agent: str) -> HttpResponseBase:
    """List the user's conversations with an agent."""
    listed = list(access.conversations(request, agent))
    chats = Source.all(agent, [session.instance_id for _, session in listed])
    return JsonResponse(
        {"chats": [_listed(name, chats.get(session.instance_id)) for name, session in listed]}
    )


@endpoint("GET")
def history(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Give a page of a chat's messages, and how its last turn stands."""
    session = access.session_for(request, agent, conversation)
    before = number(request.GET, "before", None, 10**9)
    limit = number(request.GET, "limit", PAGE, LONGEST_PAGE) or PAGE
    shown = {"agent": agent, "conversation": conversation}
    source = _source(session)
    if source is None:
        empty: dict[str, Any] = {"messages": [], "before": None, "cursor": "0", "turn": None}
        return JsonResponse({**shown, "exists": False, **empty, "pending": []})
    # Before the messages: what is stored meanwhile is told again, and not missed.
    state = source.state()
    messages, more = source.page(before, limit)
    return JsonResponse(
        {
            **shown,
            "exists": True,
            "messages": messages,
            "before": messages[0]["position"] if more and messages else None,
            "cursor": None if before else str(_cursor(source, state, messages)),
            "turn": None if state is None else _turn(state),
            "pending": [] if state is None else source.pending(state.turn),
        }
    )


@endpoint("GET")
def events(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Watch a chat from a point on, until its turn is settled."""
    session = access.session_for(request, agent, conversation)
    if key := request.GET.get("key", ""):
        return _stream(request, _watching(Queued(session, key)))
    source = _source(session)
    state = None if source is None else source.state()
    if source is None or state is None:
        return HttpResponse(status=204)
    cursor = _asked_from(request) or Cursor(source.begin_of(state.turn))
    told = (cursor.turn, cursor.status) == (state.turn, state.status)
    if told and state.settled and cursor.position >= source.last_position(state.turn):
        return HttpResponse(status=204)
    return _stream(request, _watching(Started(source, state.turn, cursor.position)))


@endpoint("POST")
def prompt(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Run a turn, and tell of it as the client wants to hear."""
    session = access.session_for(request, agent, conversation)
    given = body(request, text=(str,), key=(str, int), wait=(bool,))
    files = request.FILES.getlist("attachments")
    try:
        begun = running.prompt(session, given.get("text", ""), given.get("key"), files)
    except (TypeError, ValueError) as error:
        # Said of what the client sent, before anything is stored.
        raise Refused(str(error)) from None
    return _answer(request, begun, given.get("wait", True))


@endpoint("POST")
def continue_turn(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Go on with a turn that failed, was interrupted, or has its decisions."""
    session = access.session_for(request, agent, conversation)
    given = body(request, wait=(bool,))
    return _answer(request, running.go_on(session), given.get("wait", True))


@endpoint("POST")
def cancel(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Ask the running turn to stop."""
    session = access.session_for(request, agent, conversation)
    body(request)
    return JsonResponse({"cancelled": session.cancel()})


@endpoint("POST")
def approve(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Approve a tool call that waits."""
    session = access.session_for(request, agent, conversation)
    given = body(request, call_id=(str,))
    session.approve(_called(given), by=_name(request))
    return _decided(session)


@endpoint("POST")
def deny(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Deny a tool call that waits."""
    session = access.session_for(request, agent, conversation)
    given = body(request, call_id=(str,), reason=(str,))
    session.deny(_called(given), reason=given.get("reason", ""), by=_name(request))
    return _decided(session)


@endpoint("POST")
def answer(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Answer a question that waits."""
    session = access.session_for(request, agent, conversation)
    given = body(request, call_id=(str,), text=(str,))
    if not given.get("text", "").strip():
        raise Refused("'text' is the answer; write one.")
    session.answer(_called(given), given["text"], by=_name(request))
    return _decided(session)


@endpoint("POST")
def compact(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Make the model's view of a chat smaller now."""
    session = access.session_for(request, agent, conversation)
    given = body(request, instructions=(str,))
    change = session.compact(given.get("instructions"))
    if change is None:
        return JsonResponse({"compacted": False})
    tokens = {"before": change.tokens_before, "after": change.tokens_after}
    return JsonResponse({"compacted": True, **tokens})


@endpoint("POST")
def delete(request: HttpRequest, agent: str, conversation: str) -> HttpResponseBase:
    """Delete a chat with everything of it."""
    session = access.session_for(request, agent, conversation)
    body(request)
    return JsonResponse({"deleted": bool(session.delete())})


@endpoint("GET")
def attachment(
    request: HttpRequest, agent: str, conversation: str, attachment: Any
) -> HttpResponseBase:
    """Give a file that was attached to one of the chat's messages."""
    session = access.session_for(request, agent, conversation)
    found = session.attachment(str(attachment))
    if found is None:
        raise Http404
    kind = found.media_type if found.media_type in SHOWN else "application/octet-stream"
    file = HttpResponse(found.data, content_type=kind)
    file.headers["X-Content-Type-Options"] = "nosniff"
    file.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    disposition = "inline" if kind in SHOWN else "attachment"
    file.headers["Content-Disposition"] = disposition
    return file


def _listed(conversation: str, chat: Any) -> dict[str, Any]:
    at = None if chat is None else chat.last_message_at
    return {
        "conversation": conversation,
        "exists": chat is not None,
        "messages": 0 if chat is None else chat.message_count,
        "last_message_at": None if at is None else at.isoformat(),
    }


def _source(session: Session) -> Source | None:
    return Source.find(session.agent.name, session.instance_id)


def _turn(state: State) -> dict[str, Any]:
    shown = {"number": state.turn, "status": state.status, "running": state.running}
    return {**shown, "error": state.error}


def _cursor(source: Source, state: State | None, messages: list[dict[str, Any]]) -> Cursor:
    """Give where to begin to watch, for one who has these messages."""
    position = source.told_up_to(messages[-1]["position"]) if messages else 0
    if state is None or not state.settled:
        return Cursor(position)
    return Cursor(position, state.turn, state.status)


def _asked_from(request: HttpRequest) -> Cursor | None:
    text = request.headers.get("Last-Event-ID") or request.GET.get("after", "")
    return Cursor.read(text) if text else None


def _watching(turn: Started | Queued) -> Open:
    def opened(wake: Callable[[], object]) -> Watch | None:
        begun = turn.begun()
        if begun is None:
            return None
        return Watch(begun.source, begun.turn, Cursor(begun.position), wake, begun.outcome)

    return opened


def _answer(request: HttpRequest, turn: Started | Queued, wait: bool) -> HttpResponseBase:
    if EVENT_STREAM in request.headers.get("Accept", ""):
        return _stream(request, _watching(turn))
    if not wait:
        return JsonResponse(_handed_over(turn), status=202)
    last = None
    for sent in watching.watch(_watching(turn)):
        last = sent or last
    if last is None or last.type != "done":
        return _ended_badly(turn)
    return JsonResponse({**last.payload, "cursor": last.id})


def _handed_over(turn: Started | Queued) -> dict[str, Any]:
    begun = turn.begun()
    if begun is not None:
        return {"turn": begun.turn, "cursor": str(Cursor(begun.position))}
    return {"turn": None, "cursor": "0", "key": getattr(turn, "key", None)}


def _ended_badly(turn: Started | Queued) -> HttpResponseBase:
    begun = turn.begun()
    if begun is None:
        return envelope.refusal(503, watching.NOT_BEGUN)
    error = begun.outcome.result() if begun.outcome else None
    if isinstance(error, Exception):
        return envelope.response(error)
    state = begun.source.state(begun.turn)
    if state is None:
        raise Http404
    return envelope.failure(state.row.error)


def _stream(request: HttpRequest, open: Open) -> HttpResponseBase:
    if isinstance(request, ASGIRequest):
        content: Any = watching.astream(open)
    else:
        content = watching.stream(open)
    return StreamingHttpResponse(content, content_type=EVENT_STREAM, headers=HEADERS)


def _called(given: dict[str, Any]) -> str:
    if "call_id" not in given:
        raise Refused("'call_id' says which call; give it.")
    return str(given["call_id"])


def _name(request: HttpRequest) -> str:
    return str(request.user.get_username())[:MOST_BY]


def _decided(session: Session) -> HttpResponseBase:
    source = _source(session)
    state = None if source is None else source.state()
    if source is None or state is None:
        raise SessionNotFound
    waiting = source.pending(state.turn)
    return JsonResponse({"pending": waiting, "ready": not waiting})
