"""Files and schemas as four providers get them: sessions through litellm to strict servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from nexo_django import Agent, Session, tool
from nexo_django.completion import warm
from nexo_django.exceptions import NotSupported, ProviderUnavailable
from nexo_django.models import Attachment, Message
from tests.completion.formats import FORMATS, Provider
from tests.completion.server import fail
from tests.files import pdf, png

pytestmark = pytest.mark.django_db(transaction=True)
EACH = pytest.mark.parametrize("name", list(FORMATS))
CAT, PAPER, NOTES = png(), pdf(), b"Tom is a cat."
IMAGE, PDF = (base64.b64encode(data).decode() for data in (CAT, PAPER))
OSLO = '{"name": "Oslo", "people": 7}'


@tool
def weather(city: str) -> str:
    """Current weather in a city."""
    return f"sunny in {city}"


class City(BaseModel):
    name: str
    people: int


class Sending(Agent):
    """An agent that is given its model."""


@pytest.fixture(scope="module", autouse=True)
def litellm() -> None:
    warm()


@pytest.fixture(autouse=True)
def media_root(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = str(tmp_path)


@pytest.fixture
def provider(name: str) -> Iterator[Provider]:
    with Provider(name) as server:
        yield server


def session(provider: Provider, **overrides: Any) -> Session:
    model = provider.format.model
    return Session.resume(Sending, "u", model=model, options=provider.options, **overrides)


def said(name: str, request: dict[str, Any]) -> list[Any]:
    """Give the parts of the first message of a request."""
    first = (request.get("contents") or request.get("messages"))[0]
    parts: list[Any] = first["parts"] if name == "gemini" else first["content"]
    return parts


def seen(name: str, parts: list[Any]) -> list[Any]:
    """Give what the parts are, in one spelling."""
    return [parts] if isinstance(parts, str) else [_one(name, part) for part in parts]


def _one(name: str, part: dict[str, Any]) -> Any:
    if "text" in part:
        return part["text"]
    if name == "gemini":
        data = part.get("inline_data") or part["inlineData"]
        return data.get("mime_type") or data["mimeType"], data["data"]
    if name == "anthropic":
        assert part["type"] == {"image/png": "image"}.get(part["source"]["media_type"], "document")
        return part["source"]["media_type"], part["source"]["data"]
    if part["type"] == "file":
        assert part["file"]["filename"] == "a.pdf"
    held = part["file"]["file_data"] if part["type"] == "file" else part["image_url"]
    url = held["url"] if isinstance(held, dict) else held
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return kind, data


@EACH
def test_files(provider: Provider, name: str) -> None:
    made = session(provider)
    files = [("cat.png", CAT), ("a.txt", NOTES)]
    papers = name != "mistral"
    if papers:
        files.insert(1, ("a.pdf", PAPER))
    else:
        with pytest.raises(NotSupported, match="takes no PDF files"):
            made.prompt("Look.", attachments=[("a.pdf", PAPER)])
    made.prompt("Look.", attachments=files)
    text = "[file a.txt, 13 bytes]\nTom is a cat.\n[end of file a.txt]"
    wanted = ["Look.", ("image/png", IMAGE), *[("application/pdf", PDF)] * papers, text]
    assert seen(name, said(name, provider.requests[0])) == wanted
    # Nothing of them is in a row, and the next requests have the same bytes.
    assert not any(IMAGE[:40] in json.dumps(row.parts) for row in Message.objects.all())
    made.prompt("And now?")
    assert json.dumps(said(name, provider.requests[1])) == json.dumps(
        said(name, provider.requests[0])
    )
    assert not provider.faults


@EACH
def test_a_file_that_is_gone(provider: Provider, name: str, tmp_path: Path) -> None:
    made = session(provider)
    made.prompt("Look.", attachments=[("cat.png", CAT)])
    row = Attachment.objects.get()
    row.file.storage.delete(row.file.name)
    assert made.prompt("And now?").content == "ok"
    parts = seen(name, said(name, provider.requests[1]))
    assert parts == ["Look.\n\n[image cat.png, 68 bytes, the file is missing]"]


@pytest.mark.parametrize("name", ["openai"])
def test_a_model_that_takes_no_images_gets_a_note(provider: Provider, name: str) -> None:
    made = session(provider)
    made.prompt("Look.", attachments=[("cat.png", CAT), ("a.txt", NOTES)])
    blind = Session.resume(Sending, "u", model="openai/gpt-3.5-turbo", options=provider.options)
    assert blind.prompt("And now?").content == "ok"
    (told,) = seen(name, said(name, provider.requests[1]))
    assert "[image cat.png, 68 bytes, not shown: this model takes no images]" in told
    assert "Tom is a cat." in told


def schema_of(name: str, request: dict[str, Any]) -> Any:
    """Give the schema that the request holds the model to."""
    if name == "gemini":
        config = request.get("generationConfig") or {}
        return (
            config.get("responseJsonSchema")
            or config.get("response_json_schema")
            or config.get("response_schema")
        )
    if name == "anthropic":
        held = request.get("output_format") or (request.get("output_config") or {}).get("format")
        return held and held["schema"]
    held = request.get("response_format")
    return held and held["json_schema"]["schema"]


@EACH
@pytest.mark.parametrize("tools", [[], [weather]], ids=["alone", "tools"])
def test_schemas(provider: Provider, name: str, tools: list[Any]) -> None:
    provider.then_answer(OSLO)
    made = session(provider, tools=tools)
    assert made.prompt("Which?", output=City).output == City(name="Oslo", people=7)
    (request,) = provider.requests
    schema = schema_of(name, request)
    if tools and name in ("gemini", "mistral"):
        assert schema is None
    else:
        assert sorted(schema["properties"]) == ["name", "people"]
    assert "json_tool_call" not in json.dumps(request)
    (told,) = seen(name, said(name, request))
    assert told.startswith("Which?\n\nAnswer this message with one JSON value")
    # The next turn is held to nothing, and its request begins with the same.
    made.prompt("Thanks.")
    assert schema_of(name, provider.requests[1]) is None
    assert said(name, provider.requests[1]) == said(name, request)
    assert not provider.faults


@EACH
def test_a_correction(provider: Provider, name: str) -> None:
    if name != "gemini":
        provider.then_answer(None, [("call_1", "weather", '{"city": "Oslo"}')])
    provider.then_answer("It is Oslo.").then_answer(OSLO)
    made = session(provider, tools=[weather])
    assert made.prompt("Which?", output=City).output == City(name="Oslo", people=7)
    assert made.prompt("Thanks.").content == "ok"
    assert not provider.faults
    assert "There is no JSON in it" in json.dumps(provider.requests[-1])


@EACH
def test_a_turn_that_failed_goes_on_with_its_files(provider: Provider, name: str) -> None:
    provider.then(fail(500)).then_answer(OSLO)
    made = session(provider)
    with pytest.raises(ProviderUnavailable):
        made.prompt("Look.", attachments=[("cat.png", CAT)], output=City)
    assert made.continue_turn(output=City).output == City(name="Oslo", people=7)
    first, second = provider.requests
    assert json.dumps(first) == json.dumps(second)
    assert ("image/png", IMAGE) in seen(name, said(name, second))
