"""Attached files in every store: kept with their prompt, read by their chat, gone with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nexo_django import Session
from nexo_django.completion.catalogue import facts
from nexo_django.completion.shown import Shown
from nexo_django.exceptions import StoreFailed
from nexo_django.stores.attached import AttachmentFiles, HeldAttachments
from tests.files import pdf, png
from tests.support import Script, make_agent

pytestmark = pytest.mark.django_db(transaction=True)
STORES = pytest.mark.parametrize("store", ["database", "memory", "jsonl"])
CAT, NOTES = png(), b"My cat is called Tom."


@pytest.fixture
def made(request: Any, store: str, settings: Any, tmp_path: Path) -> Session:
    settings.MEDIA_ROOT = str(tmp_path / "media")
    named = f"jsonl:{tmp_path}/logs" if store == "jsonl" else store
    settings.NEXO = {"SESSION_STORE": named}
    return Session.resume(make_agent(Script(), name="Keeping"), request.node.name)


def read(made: Session) -> list[dict[str, Any]]:
    """Give what the model is sent of the files."""
    turn = made.stored.maintain()
    try:

        class Env:
            pass

        env: Any = Env()
        env.turn = turn
        show = Shown(env, turn.messages, facts("openai/gpt-4o"))
        return [show(part) for m in turn.messages for part in m.parts or ()]
    finally:
        turn.close()


def files(root: Path) -> list[Path]:
    places = [*root.glob("media/nexo/attachments/*"), *root.glob("logs/*.attachments/*")]
    return [path for path in places if path.is_file()]


@STORES
def test_they_are_read_by_the_next_turn(made: Session, store: str, tmp_path: Path) -> None:
    made.prompt("Look.", attachments=[("cat.png", CAT), ("a.txt", NOTES), ("a.pdf", pdf())])
    image, text, paper = read(made)
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text["text"].splitlines() == [
        "[file a.txt, 21 bytes]",
        NOTES.decode(),
        "[end of file a.txt]",
    ]
    assert paper["file"]["filename"] == "a.pdf"
    assert paper["file"]["file_data"].startswith("data:application/pdf;base64,")
    made.prompt("And again.")
    assert read(made) == [image, text, paper]
    assert len(files(tmp_path)) == (0 if store == "memory" else 3)
    assert all(path.stat().st_mode & 0o077 == 0 for path in files(tmp_path))
    made.delete()
    assert files(tmp_path) == []
    assert made.attachment("x") is None


@STORES
def test_what_is_gone_or_changed_is_a_note(
    made: Session, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if store == "memory":
        pytest.skip("nobody can take a file out of memory")
    made.prompt("Look.", attachments=[("cat.png", CAT), ("a.txt", NOTES)])
    first, second = sorted(files(tmp_path), key=lambda path: path.stat().st_size)
    first.write_bytes(b"another text, put there")
    second.unlink()
    notes = [part["text"] for part in read(made)]
    assert notes == [
        "[image cat.png, 68 bytes, the file is missing]",
        "[file a.txt, 21 bytes, the file is missing]",
    ]
    parts = made.history()[0].parts or ()
    assert [made.attachment(part["id"]) for part in parts] == [None, None]
    assert made.prompt("Go on.").content == "done"


@STORES
def test_another_chat_can_not_read_them(made: Session, store: str) -> None:
    made.prompt("Look.", attachments=[("cat.png", CAT)])
    (part,) = made.history()[0].parts or ()
    other = Session.resume(type(made.agent), "another user")
    other.prompt("Hello.")
    turn = other.stored.maintain()
    assert turn.attachments([part["id"], "nothing", "../../etc/passwd"]) == {}
    turn.close()
    other.delete()
    assert made.attachment(part["id"]) is not None
    made.delete()


@STORES
def test_a_turn_with_files_costs_one_statement_more(made: Session, store: str) -> None:
    if store != "database":
        pytest.skip("no statements")
    made.prompt("warm up")

    def count(**given: Any) -> int:
        with CaptureQueriesContext(connection) as captured:
            made.prompt("next", **given)
        return len([q for q in captured.captured_queries if not q["sql"].startswith("SET")])

    plain = count()
    many = [("a.png", CAT), ("b.png", CAT), ("c.txt", NOTES)]
    # Their rows, all in one; the files are read by the call of a model, and this one asks none.
    assert count(attachments=many) == plain + 1
    assert count() == plain


def test_a_log_that_can_not_be_written_keeps_no_file(settings: Any, tmp_path: Path) -> None:
    settings.NEXO = {"SESSION_STORE": f"jsonl:{tmp_path}/logs"}
    made = Session.resume(make_agent(Script(), name="Keeping"), "x")
    path = made.stored.path  # type: ignore[attr-defined]
    path.parent.mkdir()
    path.mkdir()
    with pytest.raises(StoreFailed):
        made.prompt("Look.", attachments=[("cat.png", CAT)])
    path.rmdir()
    path.with_name(f"{path.name}.attachments").write_text("in the way")
    with pytest.raises(StoreFailed, match="could not be"):
        made.prompt("Look.", attachments=[("cat.png", CAT)])
    assert not made.stored.exists()


def test_files_by_ids_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    kept = AttachmentFiles(tmp_path / "a")
    for id_ in ("../secret", "", "x", "0" * 32):
        assert kept.read(id_) is None
        assert HeldAttachments().read(id_) is None
