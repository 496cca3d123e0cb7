"""The whole text of a cut result is kept with its chat, and read only through it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.utils import timezone

from nexo_django.messages import ToolCall
from nexo_django.models import ToolOutput
from nexo_django.models.output import INLINE_BYTES
from tests.models.support import ask, calling, new_chat, result

pytestmark = pytest.mark.django_db
CALL = ToolCall("call_0", "a")


@pytest.fixture(autouse=True)
def media(settings: Any, tmp_path: Any) -> Any:
    settings.MEDIA_ROOT = tmp_path
    return tmp_path


@pytest.mark.parametrize("text", ["", "short", "é\n" * 1000, "🦊" * 300_000, "x" * INLINE_BYTES])
def test_a_text_comes_back_whole(text: str) -> None:
    turn = new_chat().begin(ask())
    kept = turn.keep_output(text, CALL)
    assert kept is not None
    assert turn.output(kept) == text
    row = ToolOutput.objects.get(pk=kept)
    assert row.total_bytes == len(text.encode())
    assert bool(row.file) is (row.total_bytes > INLINE_BYTES)
    assert len(row.sha256) == 64
    assert row.expires_at is not None
    turn.close()


def test_it_belongs_to_the_result_it_was_cut_from() -> None:
    turn = new_chat().begin(ask())
    turn.append(calling("a"))
    kept = turn.keep_output("whole", CALL)
    stored = turn.append(result(0, "who..."))
    row = ToolOutput.objects.get(pk=kept)
    assert row.message is not None
    assert row.message.position == stored.position
    turn.close()


def test_it_is_read_by_its_own_chat_only() -> None:
    turn, other = new_chat().begin(ask()), new_chat().begin(ask())
    kept = turn.keep_output("secret", CALL)
    assert kept is not None
    assert other.output(kept) is None
    for none in (str(uuid.uuid4()), "", "../secret", "\x00", None):
        assert turn.output(none) is None  # type: ignore[arg-type]
    turn.close()
    other.close()


def test_it_expires(settings: Any) -> None:
    turn = new_chat().begin(ask())
    kept = turn.keep_output("old", CALL)
    assert kept is not None
    ToolOutput.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert turn.output(kept) is None
    settings.NEXO = {**settings.NEXO, "OUTPUT_RETENTION": None}
    forever = turn.keep_output("kept", CALL)
    assert ToolOutput.objects.get(pk=forever).expires_at is None
    turn.close()


def test_a_storage_that_fails_does_not_fail_the_turn(media: Any, settings: Any) -> None:
    turn = new_chat().begin(ask())
    blocked = media / "file"
    blocked.write_text("not a folder")
    settings.MEDIA_ROOT = blocked
    assert turn.keep_output("x" * (INLINE_BYTES + 1), CALL) is None
    assert ToolOutput.objects.count() == 0
    assert turn.keep_output("small", CALL) is not None
    turn.close()


def test_files_go_with_the_chat(django_capture_on_commit_callbacks: Any) -> None:
    chat = new_chat()
    turn = chat.begin(ask())
    kept = turn.keep_output("x" * (INLINE_BYTES + 1), CALL)
    turn.close()
    name = ToolOutput.objects.get(pk=kept).file.name
    assert default_storage.exists(name)
    with django_capture_on_commit_callbacks(execute=True):
        assert chat.delete()["outputs"] == 1
    assert not default_storage.exists(name)
