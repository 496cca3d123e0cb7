"""Agents that use MCP servers which nobody here wrote."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from nexo_django import Session
from nexo_django.completion import LiteLLMCompletion
from nexo_django.exceptions import ToolDenied
from tests.completion.peers import needs, running
from tests.completion.server import Wire, answer
from tests.mcp.support import EVERYTHING, FETCH, FILESYSTEM, MEMORY, TIME
from tests.support import asking, call, make_agent


def results(session: Session) -> list[str]:
    return [m.content or "" for m in session.history() if m.role == "tool"]


@needs(TIME)
def test_the_time_server(resumed):
    convert = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    session = resumed(
        {"time": {"command": str(TIME)}},
        asking(call("time__convert_time", **convert)),
        asking(call("time__get_current_time", timezone="No/Where")),
    )
    session.prompt("When it is noon in London, what time is it in Tokyo?")
    good, bad = results(session)
    assert "T21:00:00+09:00" in good
    assert "No/Where" in bad
    assert [m.is_error for m in session.history() if m.role == "tool"] == [False, True]


@needs(TIME)
def test_over_the_wire_a_provider_takes_the_schemas(resumed):
    with Wire() as wire:
        called = ("call_1", "time__get_current_time", '{"timezone": "UTC"}')
        wire.then(answer(calls=[called]), answer("It is late."))
        completion = LiteLLMCompletion("openai/gpt-4o-mini", api_base=wire.url, api_key="sk-none")
        agent = make_agent(completion, mcp={"time": {"command": str(TIME)}}, permissions="auto")
        with Session.resume(agent, "1") as session:
            assert session.prompt("What time is it?").content == "It is late."
            assert "UTC" in results(session)[0]
        assert not wire.faults
        sent = {tool["function"]["name"]: tool["function"] for tool in wire.requests[0]["tools"]}
        assert sent["time__get_current_time"]["parameters"]["required"] == ["timezone"]
        assert wire.requests[0]["tools"] == wire.requests[1]["tools"]


@needs(MEMORY)
def test_the_memory_server_keeps_what_it_is_told(resumed, folder):
    entity = {"name": "Mac", "entityType": "person", "observations": ["likes tea"]}
    session = resumed(
        {
            "memory": {
                "command": str(MEMORY),
                "env": {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
            }
        },
        asking(call("memory__create_entities", entities=[entity])),
        "noted",
        asking(call("memory__search_nodes", query="tea")),
    )
    session.prompt("I am Mac, and I like tea.")
    session.close()
    session.prompt("Who likes tea?")
    assert "Mac" in results(session)[1]


@needs(FILESYSTEM)
def test_the_filesystem_server_stays_in_its_folder(resumed, folder):
    session = resumed(
        {"files": {"command": str(FILESYSTEM), "args": [str(folder)]}},
        asking(call("files__write_file", path=str(folder / "a.txt"), content="hello")),
        asking(call("files__read_text_file", path=str(folder / "a.txt"))),
        asking(call("files__read_text_file", path="/etc/passwd")),
    )
    session.prompt("Write a file.")
    assert (folder / "a.txt").read_text() == "hello"
    written, read, outside = results(session)
    assert "wrote" in written.lower()
    assert read.startswith("hello")
    assert "root:" not in outside


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>Opening hours</h1><p>Nine to five.</p></body></html>"
        self.send_response(200 if self.path != "/robots.txt" else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@needs(FETCH)
def test_the_fetch_server_and_its_prompt(resumed):
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as pages:
        Thread(target=pages.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{pages.server_port}/hours"
        session = resumed(
            {"web": {"command": str(FETCH), "args": ["--allow-private-ips"]}},
            asking(call("web__fetch", url=url)),
        )
        session.prompt("When are you open?")
        assert "Nine to five." in results(session)[0]
        assert "Nine to five." in session.mcp_prompt("web", "fetch", url=url)
        pages.shutdown()


@needs(EVERYTHING)
def test_every_kind_of_content(resumed):
    session = resumed(
        {"all": {"command": str(EVERYTHING)}},
        asking(
            call("all__get-tiny-image"),
            call("all__get-structured-content", location="New York"),
            call("all__get-resource-links", count=2),
            call("all__get-resource-reference", resourceType="Text", resourceId=1),
            call("all__get-annotated-message", messageType="error", includeImage=True),
            call("all__get-sum", a=2, b="three"),
        ),
    )
    session.prompt("Show me everything.")
    image, data, links, reference, annotated, wrong = results(session)
    assert "[image image/png, " in image
    assert "bytes, not shown]" in image
    assert json.loads(data)["temperature"] is not None
    assert links.count("[resource ") == 2
    assert "[resource demo://resource/dynamic/text/1]\nResource 1" in reference
    assert "Error" in annotated
    assert "expected number" in wrong
    assert [m.is_error for m in session.history() if m.role == "tool"] == [False] * 5 + [True]


@needs(EVERYTHING)
def test_resources_and_prompts(resumed):
    session = resumed(
        {"all": {"command": str(EVERYTHING)}},
        asking(call("all__list_resources")),
        asking(call("all__read_resource", uri="demo://resource/dynamic/text/7")),
        asking(call("all__read_resource", uri="demo://nowhere")),
        asking(call("all__read_resource")),
    )
    session.prompt("What is there to read?")
    listed, read, missing, nothing = results(session)
    assert "demo://resource/dynamic/text/{resourceId}" in listed
    assert read.startswith("Resource 7")
    assert "gave an error" in missing
    assert "uri" in nothing
    asked = session.mcp_prompt("all", "args-prompt", city="Oslo", state="Norway")
    assert "Oslo" in asked
    with_image = session.mcp_prompt("all", "resource-prompt", resourceType="Text", resourceId=3)
    assert "demo://resource/dynamic/text/3" in with_image


@needs(EVERYTHING)
def test_a_prompt_needs_a_permission(resumed):
    servers = {"all": {"command": str(EVERYTHING)}}
    closed = resumed(servers, permissions="read_only", mcp_allow=["all/echo"])
    with pytest.raises(ToolDenied, match="all/get_prompt"):
        closed.mcp_prompt("all", "simple-prompt")
    open_ = resumed(servers, permissions="read_only", mcp_allow=["all/get_prompt"])
    assert open_.mcp_prompt("all", "simple-prompt")


@needs(EVERYTHING)
def test_over_streamable_http(resumed, folder):
    options, log = ("streamableHttp",), folder / "log"
    with running(EVERYTHING, *options, port_variable="PORT", log=log) as address:
        session = resumed(
            {"all": {"url": f"{address}/mcp", "token": lambda: "a-token"}},
            asking(call("all__echo", message="one"), call("all__get-sum", a=2, b=3)),
            asking(call("all__echo", message="two")),
            asking(call("all__trigger-long-running-operation", duration=1, steps=4)),
        )
        session.prompt("Say it.")
        one, total, two, long = results(session)
        assert (one, two) == ("Echo: one", "Echo: two")
        assert "5" in total
        assert "completed" in long.lower()


@needs(EVERYTHING)
def test_a_server_over_http_that_was_restarted_is_connected_to_anew(resumed, folder):
    step = asking(call("all__echo", message="hello"))
    with running(EVERYTHING, "streamableHttp", port_variable="PORT", log=folder / "1") as address:
        port = address.rpartition(":")[2]
        session = resumed({"all": {"url": f"{address}/mcp"}}, step, "done", step, "done", step)
        session.prompt("Say it.")
    session.prompt("Say it.")
    start = (EVERYTHING, "streamableHttp")
    with running(*start, port=int(port), port_variable="PORT", log=folder / "2"):
        session.prompt("Say it.")
    first, down, again = results(session)
    assert first == again == "Echo: hello"
    assert "could not be reached" in down
