"""What may be attached, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
import io
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.uploadedfile import (
    InMemoryUploadedFile,
    SimpleUploadedFile,
    TemporaryUploadedFile,
)
from django.test import override_settings
from django.utils import timezone

from nexo_django import Session, retention
from nexo_django.exceptions import KeyConflict, NotSupported, StoreFailed
from nexo_django.models import Attachment, Chat
from tests.files import pdf, png
from tests.support import Script, make_agent

pytestmark = pytest.mark.django_db(transaction=True)
CAT = png()


@pytest.fixture(autouse=True)
def media_root(settings: Any, tmp_path: Path) -> Path:
    settings.MEDIA_ROOT = str(tmp_path / "media")
    return tmp_path / "media"


def session(*steps: Any, **attributes: Any) -> Session:
    return Session.resume(make_agent(Script(*steps), name="Looking", **attributes), "u")


def stored(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _temporary() -> TemporaryUploadedFile:
    file = TemporaryUploadedFile("cat.png", "text/html", len(CAT), None)
    file.write(CAT)
    file.seek(0)
    return file


GIVEN = {
    "pair": lambda path: ("cat.png", CAT),
    "path": lambda path: path,
    "text path": str,
    "uploaded": lambda path: SimpleUploadedFile("cat.png", CAT, "text/plain"),
    "in memory": lambda path: InMemoryUploadedFile(
        io.BytesIO(CAT), "f", "cat.png", "application/x-evil", len(CAT), None
    ),
    "temporary": lambda path: _temporary(),
    "content": lambda path: ContentFile(CAT, name="cat.png"),
    "file": lambda path: File(open(path, "rb"), name="cat.png"),  # noqa: SIM115
    "open": lambda path: open(path, "rb"),  # noqa: SIM115
    "raw": lambda path: open(path, "rb", buffering=0),  # noqa: SIM115
}


@pytest.mark.parametrize("kind", list(GIVEN))
def test_files_of_every_kind(kind: str, tmp_path: Path, media_root: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(CAT)
    given = GIVEN[kind](path)
    made = session("A cat.")
    assert made.prompt("What is this?", attachments=[given]).content == "A cat."
    (part,) = made.history()[0].parts or ()
    assert (part["name"], part["media_type"], part["bytes"]) == ("cat.png", "image/png", len(CAT))
    row = Attachment.objects.get()
    assert (str(row.pk), row.sha256, row.message.position) == (part["id"], part["sha256"], 1)
    (file,) = stored(media_root)
    assert file.read_bytes() == CAT
    assert file.stat().st_mode & 0o077 == 0
    kept = made.attachment(part["id"])
    assert kept is not None
    assert kept.data == CAT
    if hasattr(given, "read"):
        # Whoever gave it can keep it too.
        assert given.read() == CAT
        given.close()


def test_a_prompt_may_be_files_alone() -> None:
    made = session("Nice.")
    made.prompt("", attachments=[("cat.png", CAT), ("notes.txt", b"hello")])
    prompt = made.history()[0]
    assert prompt.content is None
    assert [part["name"] for part in prompt.parts or ()] == ["cat.png", "notes.txt"]


def test_files_come_after_the_parts_of_a_prompt() -> None:
    made = session("Nice.")
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    made.prompt([{"type": "text", "text": "Compare"}, image], attachments=[("b.png", CAT)])
    prompt = made.history()[0]
    assert prompt.content == "Compare"
    assert [part["type"] for part in prompt.parts or ()] == ["image_url", "attachment"]


REFUSED = {
    "none of its kind": ([("cat.png", b"\x7fELF\0\0")], "of no known type"),
    "not allowed": ([("a.svg", b"<svg/>")], None),
    "empty": ([("cat.png", b"")], "is empty"),
    "too large": ([("cat.png", b"x" * 20_001)], "20,001 bytes or more"),
    "broken": ([("cat.png", CAT[:20])], "broken image/png"),
    "too wide": ([("cat.png", png(8001, 1))], "8001 x 1 pixels"),
    "too many": ([("cat.png", CAT)] * 4, "takes 3"),
    "no such file": (["/nowhere/cat.png"], "No such file"),
    "a directory": (["/"], "can't be read|no regular file"),
    "a device": (["/dev/zero"], "no regular file"),
    "another's": ([{"type": "attachment", "id": "0" * 32}], "has no attachment"),
    "no id at all": ([{"type": "attachment", "id": "../../etc/passwd"}], "has no attachment"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_refused(case: str, media_root: Path) -> None:
    given, says = REFUSED[case]
    made = session()
    limits = {"ATTACHMENT_BYTES": 20_000, "ATTACHMENT_COUNT": 3}
    with override_settings(NEXO=limits):
        if says is None:
            made.prompt("x", attachments=given)
            return
        with pytest.raises(ValueError, match=says) as caught:
            made.prompt("x", attachments=given)
    assert "\\x7fELF" not in str(caught.value)
    assert not Chat.objects.exists()
    assert stored(media_root) == []


@pytest.mark.parametrize(
    "given",
    [
        b"bytes",
        "cat.png",
        [b"bytes"],
        [1],
        [None],
        [("cat.png", "text")],
        {"a": 1},
        [{"type": "text"}],
    ],
)
def test_what_is_no_file(given: Any) -> None:
    with pytest.raises(TypeError):
        session().prompt("x", attachments=given)
    assert not Chat.objects.exists()


def test_a_file_that_is_open_as_text(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with path.open() as file, pytest.raises(TypeError, match="'rb'"):
        session().prompt("x", attachments=[file])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        session().prompt("x", attachments=[tmp_path / "pipe"])


def test_types_can_be_narrowed_and_parts_are_not_taken_from_a_list() -> None:
    with override_settings(NEXO={"ATTACHMENT_TYPES": ["image/*"]}):
        session().prompt("x", attachments=[("a.png", CAT)])
        with pytest.raises(ValueError, match="application/pdf, by its content"):
            session().prompt("x", attachments=[("a.png", pdf())])
    for kind in ("attachment", "output"):
        with pytest.raises(ValueError, match="is made by"):
            session().prompt([{"type": kind, "id": "x", "schema": "{}"}])


def test_texts_count_as_the_prompt() -> None:
    made = session(max_prompt_bytes=100)
    with pytest.raises(ValueError, match="this agent takes 100"):
        made.prompt("x", attachments=[("a.txt", b"word " * 30)])
    made.prompt("x", attachments=[("a.png", png(200, 200))])


def test_a_model_that_takes_no_images_is_told_before_anything_is_written() -> None:
    made = session(model="openai/gpt-3.5-turbo")
    with pytest.raises(NotSupported, match="takes no images"):
        made.prompt("x", attachments=[("a.png", CAT)])
    with pytest.raises(NotSupported, match="takes no PDF files"):
        made.prompt("x", attachments=[("a.pdf", pdf())])
    assert not Chat.objects.exists()
    made.prompt("x", attachments=[("a.txt", b"a text")])
    session(model="openai/a-model-of-our-own").prompt("x", attachments=[("a.png", CAT)])


def test_a_file_can_be_attached_again_by_its_part(media_root: Path) -> None:
    made = session()
    made.prompt("one", attachments=[("a.png", CAT)])
    (part,) = made.history()[0].parts or ()
    made.prompt("two", attachments=[part])
    assert made.history()[2].parts == (part,)
    assert Attachment.objects.count() == len(stored(media_root)) == 1
    other = Session.resume(make_agent(Script(), name="Looking"), "another")
    with pytest.raises(ValueError, match="has no attachment"):
        other.prompt("mine?", attachments=[part])
    assert other.attachment(part["id"]) is None


def test_a_key_with_the_same_file_is_the_same_prompt(media_root: Path) -> None:
    made = session("first")
    for _ in range(2):
        reply = made.prompt("x", attachments=[("a.png", CAT)], key="k")
        assert reply.content == "first"
    assert len(stored(media_root)) == 1
    with pytest.raises(KeyConflict):
        made.prompt("x", attachments=[("a.png", png(4, 4))], key="k")
    with pytest.raises(KeyConflict):
        made.prompt("x", key="k")
    assert len(stored(media_root)) == 1


def test_the_files_go_with_the_chat(media_root: Path) -> None:
    made = session()
    made.prompt("x", attachments=[("a.png", CAT), ("a.txt", b"hello")])
    assert made.delete()["attachments"] == 2
    assert stored(media_root) == []
    made.prompt("x", attachments=[("a.png", CAT)])
    assert len(stored(media_root)) == 1
    Chat.objects.all().delete()
    assert stored(media_root) == []


def test_a_deletion_that_is_rolled_back_keeps_them(media_root: Path) -> None:
    from django.db import transaction

    made = session()
    made.prompt("x", attachments=[("a.png", CAT)])
    with transaction.atomic():
        Chat.objects.all().delete()
        transaction.set_rollback(True)
    assert len(stored(media_root)) == 1
    (part,) = made.history()[0].parts or ()
    assert made.attachment(part["id"]) is not None


def test_nothing_is_left_when_the_prompt_can_not_be_stored(
    media_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import DatabaseError

    from nexo_django.stores import database_attachments

    def fail(*args: Any) -> None:
        raise DatabaseError("full")

    monkeypatch.setattr(database_attachments, "store", fail)
    with pytest.raises(StoreFailed):
        session().prompt("x", attachments=[("a.png", CAT), ("b.png", CAT)])
    assert stored(media_root) == []
    assert not Chat.objects.exists()


def test_nothing_is_left_when_a_file_can_not_be_kept(media_root: Path) -> None:
    media_root.write_text("in the way of the directory")
    with pytest.raises(StoreFailed, match="could not be kept"):
        session().prompt("x", attachments=[("a.png", CAT)])
    assert not Chat.objects.exists()


def test_a_storage_of_its_own(settings: Any, tmp_path: Path, media_root: Path) -> None:
    backend = "django.core.files.storage.FileSystemStorage"
    own = {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path / "own")}}
    settings.STORAGES = {**settings.STORAGES, "private": own}
    settings.NEXO = {"ATTACHMENT_STORAGE": "private"}
    made = session()
    made.prompt("x", attachments=[("a.png", CAT)])
    assert len(stored(tmp_path / "own")) == 1
    assert not media_root.exists()
    made.delete()
    assert stored(tmp_path / "own") == []


def test_async_prompts_take_files_too() -> None:
    made = session("one", "two", "three")

    async def run() -> list[str]:
        first = await made.aprompt("x", attachments=[("a.png", CAT)])
        (part,) = (await made.ahistory())[0].parts or ()
        second = await made.aprompt("again", attachments=[part])
        said = [e async for e in made.astream("more", attachments=[("b.txt", b"b")])]
        kept = await made.aattachment(part["id"])
        assert kept is not None
        with pytest.raises(ValueError, match="is empty"):
            await made.aprompt("x", attachments=[("a.png", b"")])
        return [first.content, second.content, said[-1].payload["content"]]

    assert asyncio.run(run()) == ["one", "two", "three"]


def test_what_a_killed_process_left_is_purged(media_root: Path) -> None:
    made = session()
    made.prompt("x", attachments=[("a.png", CAT)])
    folder = media_root / "nexo" / "attachments"
    (kept,) = folder.iterdir()
    orphan = folder / "00000000-0000-0000-0000-000000000000"
    orphan.write_bytes(CAT)
    # A prompt may be about to be stored.
    assert retention.purge_attachments() == 0
    assert retention.purge_attachments(timezone.now() + timedelta(days=2)) == 1
    assert list(folder.iterdir()) == [kept]
    made.delete()
    assert retention.purge_attachments(timezone.now() + timedelta(days=2)) == 0
    with override_settings(NEXO={"SESSION_STORE": "memory"}):
        assert retention.purge_attachments() == 0


def test_nothing_is_there_to_purge() -> None:
    assert retention.purge_attachments() == 0
