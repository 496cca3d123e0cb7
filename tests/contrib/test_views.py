"""The views in one process: what they refuse, what they say, and that they fit Django's own tests."""

from __future__ import annotations

import base64
import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client, override_settings
from django.urls import URLPattern, get_resolver, reverse

from nexo_django import Session, exceptions
from nexo_django.contrib import envelope
from tests.contrib.site.agents import Web
from tests.support import Script, make_agent

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("site")]


@pytest.fixture
def site():
    with override_settings(
        ROOT_URLCONF="tests.contrib.site.urls", NEXO={"ACCESS": "tests.contrib.site.urls.access"}
    ):
        yield


def user(name):
    return get_user_model().objects.create_user(name)


def client(name="ann", **options):
    made = Client(**options)
    made.force_login(user(name))
    return made


def post(made, verb, chat="main", agent="Web", **body):
    address = reverse(f"nexo:{verb}", args=[agent, chat])
    return made.post(address, json.dumps(body), content_type="application/json")


def get(made, verb, *args, agent="Web", **query):
    return made.get(reverse(f"nexo:{verb}", args=[agent, *(args or ["main"])]), query)


def parsed(content):
    blocks = [block for block in content.decode().split("\n\n") if "data: " in block]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def test_a_stream_under_wsgi():
    made = client()
    answer = made.post(
        reverse("nexo:prompt", args=["Web", "main"]),
        json.dumps({"text": "double 4"}),
        content_type="application/json",
        headers={"Accept": "text/event-stream"},
    )
    assert answer.streaming
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert "no-transform" in answer.headers["Cache-Control"]
    assert answer.headers["Content-Encoding"] == "identity"
    events = parsed(answer.getvalue())
    kinds = ["message", "message", "tool_call", "tool_result", "message", "done"]
    assert [event["event"] for event in events] == kinds
    assert [event.get("id") for event in events] == ["1", None, "2", "3", "4", "4.1.done"]


def test_a_stream_under_asgi():
    async def streamed():
        made = AsyncClient()
        await made.aforce_login(await get_user_model().objects.acreate(username="ann"))
        answer = await made.post(
            reverse("nexo:prompt", args=["Web", "main"]),
            json.dumps({"text": "say hello"}),
            content_type="application/json",
            headers={"Accept": "text/event-stream"},
        )
        assert answer.is_async
        return b"".join([part async for part in answer.streaming_content])

    events = parsed(async_to_sync(streamed)())
    assert [event["event"] for event in events] == ["message", "message", "done"]


def test_history_is_paged():
    made = client()
    for n in range(4):
        post(made, "prompt", text=f"say {n}")
    page = get(made, "history", limit=3).json()
    assert [m["position"] for m in page["messages"]] == [6, 7, 8]
    earlier = get(made, "history", limit=3, before=page["before"]).json()
    assert [m["position"] for m in earlier["messages"]] == [3, 4, 5]
    assert earlier["cursor"] is None
    first = get(made, "history", limit=3, before=earlier["before"]).json()
    assert ([m["position"] for m in first["messages"]], first["before"]) == ([1, 2], None)


def test_a_chat_that_does_not_exist_yet_is_empty():
    made = client()
    page = get(made, "history").json()
    assert (page["exists"], page["messages"], page["cursor"]) == (False, [], "0")
    assert get(made, "events").status_code == 204
    assert post(made, "cancel").json() == {"cancelled": False}
    assert post(made, "delete").json() == {"deleted": False}
    assert post(made, "continue").json()["error"]["code"] == "not_found"
    assert post(made, "compact").json()["error"]["code"] == "not_found"


def test_the_users_conversations_are_listed():
    made = client()
    post(made, "prompt", text="say hello")
    chats = made.get(reverse("nexo:chats", args=["Web"])).json()["chats"]
    assert [(c["conversation"], c["exists"], c["messages"]) for c in chats] == [
        ("main", True, 2),
        ("other", False, 0),
    ]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"text": ""}, 400, "bad_request"),
        ({"text": "  "}, 400, "bad_request"),
        ({}, 400, "bad_request"),
        ({"text": 3}, 400, "bad_request"),
        ({"text": "x" * 1_000_001}, 400, "bad_request"),
        ({"text": "say x", "key": "k" * 300}, 400, "bad_request"),
        ({"text": "say x", "key": True}, 400, "bad_request"),
        ({"text": "say x", "instance_id": "user-1"}, 400, "bad_request"),
        ({"text": "say x", "parts": [{"type": "image_url"}]}, 400, "bad_request"),
    ],
)
def test_a_prompt_that_can_not_be_right_stores_nothing(body, status, code):
    made = client()
    answer = post(made, "prompt", **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert get(made, "history").json()["exists"] is False


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad_request"),
        (b"[]", "application/json", 400, "bad_request"),
        (b"\xff", "application/json", 400, "bad_request"),
        (b"[" * 100_000, "application/json", 400, "bad_request"),
        (b"text=hello", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b'{"text": "' + b"x" * 3_000_000 + b'"}', "application/json", 413, "too_large"),
    ],
)
def test_a_body_that_can_not_be_read_is_refused(content, kind, status, code):
    made = client()
    answer = made.post(reverse("nexo:prompt", args=["Web", "main"]), content, content_type=kind)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("after", ["x", "-1", "1.2", "1.2.done'", "9" * 20, "\u0661"])
def test_a_cursor_of_somebody_else_is_refused(after):
    made = client()
    post(made, "prompt", text="say hello")
    assert get(made, "events", after=after).json()["error"]["code"] == "bad_request"


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "x"}, {"before": "-3"}])
def test_a_page_that_can_not_be_is_refused(query):
    assert get(client(), "history", **query).json()["error"]["code"] == "bad_request"


def test_nobody_who_is_not_logged_in_comes_in():
    for name, args in addresses():
        address = reverse(name, args=args)
        for verb in ("get", "post"):
            answer = getattr(Client(), verb)(address)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "login_required"
    page = Client().get(
        reverse("nexo:history", args=["Web", "main"]), headers={"Accept": "text/html"}
    )
    assert page.status_code == 302
    assert page.headers["Location"].startswith("/accounts/login/?next=/assistant/Web/main/")


def test_every_address_takes_one_method():
    made = client()
    for name, args in addresses():
        answers = [made.get(reverse(name, args=args)), made.post(reverse(name, args=args))]
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(405) == 1, (name, statuses)


def test_a_post_without_the_token_is_refused():
    made = client(enforce_csrf_checks=True)
    posts = 0
    for name, args in addresses():
        answer = made.post(reverse(name, args=args), "{}", content_type="application/json")
        assert answer.status_code == 403
        posts += 1
    assert posts > 10


def test_one_user_reaches_nothing_of_another():
    ann, bob = client("ann"), client("bob")
    post(ann, "prompt", text="say secret", key="k")
    session = Session.resume(Web, f"user-{get_user_model().objects.get(username='ann').pk}/main")
    before = [m.to_dict() for m in session.history()]
    ids = ["main", session.instance_id, "user-1/main", "..", "1", str(chat_of(session).pk)]
    bodies = ({}, {"text": "say hi", "key": "k"}, {"call_id": "call_0", "text": "x"})
    walked = 0
    for pattern in patterns():
        for name in ids:
            if "/" in name:
                continue
            args = ["Web", name][: len(pattern.pattern.converters)]
            if "attachment" in pattern.pattern.converters:
                args = ["Web", name, "00000000-0000-0000-0000-000000000001"]
            address = reverse(f"nexo:{pattern.name}", args=args)
            for body in bodies:
                for answer in (
                    bob.get(address, {"before": 3, "after": "0"}),
                    bob.post(address, json.dumps(body), content_type="application/json"),
                ):
                    said = answer.getvalue() if answer.streaming else answer.content
                    assert b"secret" not in said
                    assert answer.status_code < 500, (address, said)
                    walked += 1
    assert walked > 200
    assert [m.to_dict() for m in session.history()] == before


def test_what_the_hook_refuses_is_not_there():
    made = client()
    post(made, "prompt", text="say hello")
    for pattern in patterns():
        converters = pattern.pattern.converters
        for agent, chat in (("Secret", "main"), ("Nobody", "main"), ("Web", "forbidden")):
            if "conversation" not in converters and agent == "Web":
                continue
            args = [agent, chat, "00000000-0000-0000-0000-000000000001"][: len(converters)]
            address = reverse(f"nexo:{pattern.name}", args=args)
            for answer in (made.get(address), made.post(address)):
                if answer.status_code == 405:
                    continue
                if pattern.name == "chats" and agent == "Secret":
                    assert answer.json() == {"chats": []}
                    continue
                assert answer.status_code == 404, (address, answer.content)
                assert answer.json()["error"]["code"] == "not_found"


def test_a_long_chat_can_be_compacted():
    made = client()
    for n in range(12):
        post(made, "prompt", text=f"say {n} {'word ' * 400}")
    told = post(made, "compact", instructions="Keep the numbers.").json()
    assert told["compacted"] is True
    assert told["before"] > told["after"] > 0
    assert post(made, "compact").status_code == 200
    messages = get(made, "history").json()["messages"]
    assert sum(m["role"] == "user" and m["kind"] == "normal" for m in messages) == 12
    cursor = get(made, "history").json()["cursor"]
    assert get(made, "events", after=cursor).status_code == 204


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@pytest.mark.parametrize(
    ("name", "data", "kind", "shown"),
    [
        ("cat.png", PNG, "image/png", "inline"),
        ("notes.html", b"<script>alert(1)</script>", "application/octet-stream", "attachment"),
    ],
)
def test_files_are_attached_and_given_back(name, data, kind, shown, settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path
    ann, bob = client("ann"), client("bob")
    form = {"text": "say seen", "attachments": SimpleUploadedFile(name, data)}
    make_agent(Script("seen"), "Looks", context_window=100_000)
    answer = ann.post(reverse("nexo:prompt", args=["Looks", "main"]), form)
    if answer.status_code == 501:
        pytest.skip("the offline model takes no such file")
    assert answer.status_code == 200, answer.content
    [attached] = get(ann, "history", agent="Looks").json()["messages"][0]["attachments"]
    assert (attached["name"], attached["bytes"]) == (name, len(data))
    address = reverse("nexo:attachment", args=["Looks", "main", attached["id"]])
    assert bob.get(address).status_code == 404
    given = ann.get(address)
    assert (given.content, given.headers["Content-Type"]) == (data, kind)
    assert given.headers["Content-Disposition"] == shown
    assert given.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in given.headers["Content-Security-Policy"]


def test_a_file_that_is_not_taken_stores_nothing():
    made = client()
    form = {"text": "say seen", "attachments": SimpleUploadedFile("x.bin", bytes(range(256)))}
    answer = made.post(reverse("nexo:prompt", args=["Web", "main"]), form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert get(made, "history").json()["exists"] is False


def test_the_views_run_outside_transactions():
    for pattern in patterns():
        assert pattern.callback._non_atomic_requests == {"default"}


def test_an_error_of_the_site_is_told_without_its_details(caplog):
    def broken(env):
        raise ValueError("the password is hunter2")

    make_agent(Script(broken), "Broken")
    answer = post(client(), "prompt", agent="Broken", text="hello")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "hunter2" not in answer.content.decode()
    caplog.clear()
    with override_settings(NEXO={}):
        answer = post(client("bob"), "prompt", text="say hello")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "configuration_error")
    assert "ACCESS" not in answer.content.decode()
    assert "ACCESS" in caplog.text


def test_every_error_has_a_code():
    errors = [
        e for e in vars(exceptions).values() if isinstance(e, type) and issubclass(e, Exception)
    ]
    for cls in errors:
        status, description = envelope.described(cls())
        assert 400 <= status < 600
        assert description["message"]
        assert envelope.stored(cls.__name__)["code"] == description["code"]


def chat_of(session):
    return session.stored._rows().get()


def patterns():
    [found] = [p for p in get_resolver().url_patterns if getattr(p, "namespace", "") == "nexo"]
    assert all(isinstance(pattern, URLPattern) for pattern in found.url_patterns)
    return found.url_patterns


def addresses():
    for pattern in patterns():
        args = ["Web", "main", "00000000-0000-0000-0000-000000000001"]
        yield f"nexo:{pattern.name}", args[: len(pattern.pattern.converters)]
