"""What a browser does, on whatever serves the site: every server passes the same list.

A scenario takes a `Site` and raises AssertionError. Waiting is for something that is certain
to come, never for time to pass.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 120.0
EVENT_STREAM = {"Accept": "text/event-stream"}


@dataclass
class Site:
    """Where the site is, and the folder of its gates."""

    url: str
    folder: Path
    # Whether turns run in other processes than those that answer.
    queued: bool = False
    pid: int = 0
    names: dict[str, str] = field(default_factory=dict)
    users: list[User] = field(default_factory=list)

    def user(self, name: str) -> User:
        """Log in a user that no other scenario has."""
        self.users.append(User(self, self.names.setdefault(name, f"{name}-{uuid.uuid4().hex[:8]}")))
        return self.users[-1]

    def close(self) -> None:
        """Close what the users have open."""
        for user in self.users:
            user.http.close()

    def gate(self) -> Gate:
        """Make a gate, which is closed."""
        return Gate(self.folder / f"gate-{uuid.uuid4().hex[:8]}")


@dataclass
class Gate:
    """What a turn waits at."""

    path: Path

    def __str__(self) -> str:
        return self.path.name

    def open(self) -> None:
        self.path.touch()


@dataclass
class Event:
    """An event as it came."""

    type: str
    payload: dict[str, Any]
    id: str


class User:
    """A logged in client."""

    def __init__(self, site: Site, name: str, agent: str = "Web") -> None:
        self.site, self.agent = site, agent
        self.http = httpx.Client(base_url=site.url, timeout=PATIENCE, trust_env=False)
        self.token = self.http.get(f"/enter/{name}").json()["token"]

    def address(self, verb: str = "", chat: str = "main") -> str:
        return f"/assistant/{self.agent}/{chat}/{verb}"

    def get(self, verb: str = "", chat: str = "main", **query: Any) -> httpx.Response:
        return self.http.get(self.address(verb, chat), params=query)

    def post(self, verb: str, chat: str = "main", **body: Any) -> httpx.Response:
        headers = {"X-CSRFToken": self.token}
        return self.http.post(self.address(verb, chat), json=body, headers=headers)

    def history(self, chat: str = "main", **query: Any) -> dict[str, Any]:
        answer = self.get("", chat, **query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    @contextmanager
    def prompting(self, text: str, chat: str = "main", **body: Any) -> Iterator[Iterator[Event]]:
        headers = {"X-CSRFToken": self.token, **EVENT_STREAM}
        given = {"text": text, **body}
        with self.http.stream(
            "POST", self.address("prompt", chat), json=given, headers=headers
        ) as answer:
            yield events(answer)

    @contextmanager
    def watching(
        self, after: str = "", chat: str = "main", key: str | None = None
    ) -> Iterator[Iterator[Event]]:
        headers = {**EVENT_STREAM, **({"Last-Event-ID": after} if after else {})}
        query = {"key": key} if key else {}
        address = self.address("events", chat)
        with self.http.stream("GET", address, headers=headers, params=query) as answer:
            yield events(answer)

    def settled(self, chat: str = "main") -> dict[str, Any]:
        """Give the history when no turn runs any more."""
        with self.watching(self.history(chat)["cursor"], chat) as told:
            list(told)
        return self.history(chat)


def events(answer: httpx.Response) -> Iterator[Event]:
    """Read an event stream; 204 has none."""
    if answer.status_code == 204:
        return
    if answer.status_code != 200:
        raise AssertionError((answer.status_code, answer.read()))
    assert answer.headers["content-type"] == "text/event-stream"
    kind = data = mark = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            mark = value
        elif name == "data":
            data = value
        elif not line and data:
            yield Event(kind, json.loads(data), mark)
            kind = data = mark = ""


def until(told: Iterator[Event], *types: str) -> list[Event]:
    """Read up to the first event of one of the types."""
    seen = []
    for event in told:
        seen.append(event)
        if event.type in types:
            return seen
    raise AssertionError(f"no {types} in {[event.type for event in seen]}")


def text(seen: list[Event]) -> str:
    """Put the pieces together as a client does."""
    said = ""
    for event in seen:
        if event.type == "content":
            if event.payload["offset"] == 0:
                said = ""
            assert event.payload["offset"] == len(said)
            said += event.payload["text"]
    return said


def stored(seen: list[Event]) -> dict[int, str]:
    """Give what came of messages, by their positions."""
    kinds = ("message", "tool_result")
    return {e.payload["position"]: e.payload["content"] for e in seen if e.type in kinds}


def said(history: dict[str, Any]) -> dict[int, str]:
    """Give what is stored, by position."""
    return {m["position"]: m["content"] for m in history["messages"]}


def prompt_and_reply(site: Site) -> None:
    """A JSON prompt gives the reply, and the history has both."""
    ann = site.user("ann")
    answer = ann.post("prompt", text="say one two")
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "done"
    assert answer.json()["content"] == "one two "
    assert answer.json()["usage"]["output"] == 5
    history = ann.history()
    assert [m["role"] for m in history["messages"]] == ["user", "assistant"]
    assert history["turn"]["status"] == "done"
    assert history["turn"]["running"] is False
    assert history["cursor"] == answer.json()["cursor"]
    assert ann.get("events", after=history["cursor"]).status_code == 204


def stream(site: Site) -> None:
    """Text comes while the model writes it, and the message at the end is the same."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "stream") as told:
        seen = until(told, "content")
        assert stored(seen) == {1: f"drip {gate}"}
        gate.open()
        seen += until(told, "done")
        assert not list(told)
    assert [e.type for e in seen if e.type != "content"] == ["message", "message", "done"]
    answer = stored(seen)[2]
    assert answer.startswith(text(seen))
    assert seen[-1].payload["content"] == answer
    assert seen[-1].payload["status"] == "done"
    assert stored(seen) == said(ann.history("stream"))


def tools(site: Site) -> None:
    """Parallel calls and their results come with the positions that they are stored at."""
    ann = site.user("ann")
    with ann.prompting("double 1 2 3", "tools") as told:
        seen = until(told, "done")
    history = ann.history("tools")
    assert stored(seen) == said(history)
    calls = {e.payload["id"]: e.payload["position"] for e in seen if e.type == "tool_call"}
    results = [e for e in seen if e.type == "tool_result"]
    assert {e.payload["id"]: e.payload["position"] for e in results} == calls
    assert {e.payload["content"] for e in results} == {"2", "4", "6"}
    asked = history["messages"][1]["tool_calls"]
    assert [(c["id"], c["status"]) for c in asked] == [(f"call_{n}", "done") for n in range(3)]


def drop_and_resume(site: Site) -> None:
    """Who comes back with the last id misses nothing, and sees the text so far."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "drop") as told:
        before = until(told, "content")
    last = [e.id for e in before if e.id][-1]
    with ann.watching(last, "drop") as told:
        after = until(told, "content")
        assert after[0].type == "content"
        assert after[0].payload["offset"] == 0
        gate.open()
        after += until(told, "done")
    assert stored(before + after) == said(ann.history("drop"))
    assert not stored(before).keys() & stored(after).keys()
    with ann.watching(after[-1].id, "drop") as told:
        assert not list(told)
    # From every id on, the rest comes.
    for n, event in enumerate(before + after):
        if event.id:
            with ann.watching(event.id, "drop") as told:
                rest = [e.id for e in told if e.id]
            assert rest == [e.id for e in (before + after)[n + 1 :] if e.id]


def leave(site: Site) -> None:
    """A client that goes away ends nothing."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "leave") as told:
        until(told, "content")
    assert ann.history("leave")["turn"]["running"] is True
    gate.open()
    history = ann.settled("leave")
    assert history["turn"] == {"number": 1, "status": "done", "running": False, "error": None}
    assert history["messages"][-1]["status"] == "complete"


def cancel(site: Site) -> None:
    """A cancelled turn keeps its text so far, and ends with the status cancelled."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "cancel") as told:
        until(told, "content")
        assert ann.post("cancel", "cancel").json() == {"cancelled": True}
        seen = until(told, "done", "failed")
    assert (seen[-1].type, seen[-1].payload["status"]) == ("done", "cancelled")
    history = ann.history("cancel")
    assert history["messages"][-1]["status"] == "interrupted"
    assert history["messages"][-1]["content"].startswith("drop ")
    assert ann.post("cancel", "cancel").json() == {"cancelled": False}
    assert ann.post("prompt", "cancel", text="say again").json()["content"] == "again "


def wait_false(site: Site) -> None:
    """A prompt can be handed over, and watched from the cursor that comes back."""
    ann, gate = site.user("ann"), site.gate()
    answer = ann.post("prompt", "handed", text=f"drip {gate}", wait=False)
    assert answer.status_code == 202, answer.text
    handed = answer.json()
    with ann.watching(handed["cursor"], "handed", key=handed.get("key")) as told:
        seen = until(told, "content")
        gate.open()
        seen += until(told, "done")
    assert stored(seen) == said(ann.history("handed"))


def keys(site: Site) -> None:
    """A prompt that is sent again with its key is one turn; another prompt is refused."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "keys", key="k1") as told:
        until(told, "content")
        with ann.prompting(f"drip {gate}", "keys", key="k1") as again:
            until(again, "message")
            gate.open()
            seen = until(again, "done")
        until(told, "done")
    twice = ann.post("prompt", "keys", text=f"drip {gate}", key="k1").json()
    assert twice["content"] == seen[-1].payload["content"]
    assert ann.history("keys")["turn"]["number"] == 1
    refused(ann.post("prompt", "keys", text="say other", key="k1"), 409, "key_conflict")


def busy(site: Site) -> None:
    """A second prompt in mid-turn is refused, and says when to try again."""
    ann, gate = site.user("ann"), site.gate()
    with ann.prompting(f"drip {gate}", "busy") as told:
        until(told, "content")
        answer = ann.post("prompt", "busy", text="say no")
        refused(answer, 409, "busy")
        assert int(answer.headers["Retry-After"]) == answer.json()["error"]["retry_after"] > 0
        refused(ann.post("delete", "busy"), 409, "busy")
        gate.open()
        until(told, "done")
    assert len(ann.history("busy")["messages"]) == 2


def failures(site: Site) -> None:
    """A turn that fails says why in each form, and goes on when it is continued."""
    ann, gate = site.user("ann"), site.gate()
    answer = ann.post("prompt", "fails", text=f"fail {gate}")
    refused(answer, 429, "rate_limited")
    assert answer.headers["Retry-After"] == "7"
    history = ann.history("fails")
    assert history["turn"]["status"] == "failed"
    assert history["turn"]["error"]["code"] == "rate_limited"
    with ann.watching("0", "fails") as told:
        seen = until(told, "failed")
    assert seen[-1].payload["error"]["code"] == "rate_limited"
    gate.open()
    answer = ann.post("continue", "fails")
    assert answer.json()["content"] == f"{gate} "
    refused(ann.post("continue", "fails"), 409, "nothing_to_continue")


def two_users(site: Site) -> None:
    """The same addresses are other chats for another user."""
    ann, bob = site.user("ann"), site.user("bob")
    ann.post("prompt", "ours", text="say secret")
    assert bob.history("ours")["exists"] is False
    bob.post("prompt", "ours", text="say bob")
    assert [m["content"] for m in ann.history("ours")["messages"]] == ["say secret", "secret "]
    assert [m["content"] for m in bob.history("ours")["messages"]] == ["say bob", "bob "]
    assert bob.post("delete", "ours").json() == {"deleted": True}
    assert ann.history("ours")["exists"] is True


def approval(site: Site) -> None:
    """A call that waits is told, decided once, and the turn goes on."""
    ann, bob = site.user("ann"), site.user("bob")
    with ann.prompting("save a b", "approve") as told:
        seen = until(told, "done")
    asked = [e.payload for e in seen if e.type == "approval_requested"]
    assert [(c["call_id"], c["arguments"]) for c in asked] == [
        ("call_0", {"name": "a"}),
        ("call_1", {"name": "b"}),
    ]
    assert seen[-1].payload["status"] == "awaiting_approval"
    assert ann.history("approve")["pending"] == asked
    for verb in ("approve", "deny"):
        assert bob.post(verb, "approve", call_id="call_0").status_code == 404
    first = ann.post("approve", "approve", call_id="call_0").json()
    assert ([c["call_id"] for c in first["pending"]], first["ready"]) == (["call_1"], False)
    refused(ann.post("deny", "approve", call_id="call_0"), 409, "not_pending")
    refused(ann.post("answer", "approve", call_id="call_1", text="x"), 409, "not_pending")
    refused(ann.post("approve", "approve", call_id="call_9"), 409, "not_pending")
    last = ann.post("deny", "approve", call_id="call_1", reason="too late").json()
    assert last == {"pending": [], "ready": True}
    assert ann.post("continue", "approve").json()["status"] == "done"
    with ann.watching(seen[-1].id, "approve") as told:
        seen += until(told, "done")
    results = [e.payload for e in seen if e.type == "tool_result"]
    assert results[0]["content"] == "saved a"
    assert "too late" in results[1]["content"]
    assert stored(seen) == said(ann.history("approve"))


def question(site: Site) -> None:
    """A question waits for its answer, which is the call's result."""
    ann = site.user("ann")
    answer = ann.post("prompt", "ask", text="ask colour?").json()
    [asked] = answer["pending"]
    assert (answer["status"], asked["kind"], asked["question"]) == (
        "awaiting_answer",
        "question",
        "colour?",
    )
    refused(ann.post("answer", "ask", call_id="call_0", text=" "), 400, "bad_request")
    assert ann.post("answer", "ask", call_id="call_0", text="blue").json()["ready"] is True
    assert ann.post("continue", "ask").json()["status"] == "done"
    assert ann.history("ask")["messages"][2]["content"] == "blue"


def refused(answer: httpx.Response, status: int, code: str) -> None:
    """Check an error's envelope."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


# What a worker tries again by itself is no failure that a client sees.
HERE = (failures,)

SCENARIOS: tuple[Callable[[Site], None], ...] = (
    prompt_and_reply,
    stream,
    tools,
    drop_and_resume,
    leave,
    cancel,
    wait_false,
    keys,
    busy,
    failures,
    approval,
    question,
    two_users,
)
