"""Outputs as rows and files: the row comes first, and a file never outlives it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, default_storage

from nexo_django.exceptions import LeaseLost
from nexo_django.messages import ToolCall
from nexo_django.models import ToolOutput
from nexo_django.models.output import INLINE_BYTES
from tests.models.support import ask, new_chat, row_of

pytestmark = pytest.mark.django_db
LARGE = "é" * INLINE_BYTES
CALL = ToolCall("call_0", "a")


class Losing(FileSystemStorage):
    """A storage during whose writing the chat's outputs are deleted."""

    def _save(self, name: str, content: Any) -> str:
        saved: str = super()._save(name, content)
        ToolOutput.objects.all().delete()
        return saved


class Renaming(FileSystemStorage):
    """A storage that has names of its own."""

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        return f"{name}-renamed"


def use(settings: Any, folder: Path, storage: type[FileSystemStorage] = FileSystemStorage) -> None:
    backend = f"{storage.__module__}.{storage.__qualname__}"
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": backend}}
    settings.MEDIA_ROOT = folder


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_row_tells_of_its_text(settings: Any, tmp_path: Path) -> None:
    use(settings, tmp_path)
    chat = new_chat()
    turn = chat.begin(ask())
    for text, lines in (("a\nb", 2), ("a\nb\n", 2), ("", 0), (LARGE, 1)):
        row = ToolOutput.objects.get(pk=turn.keep_output(text, CALL))
        assert (row.total_bytes, row.total_lines) == (len(text.encode()), lines)
        assert row.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert str(row) == str(row.pk)
    assert [str(p.relative_to(tmp_path)) for p in files(tmp_path)] == [
        f"nexo/{row_of(chat).pk}/outputs/{row.pk}"
    ]
    turn.close()


def test_a_file_whose_row_went_meanwhile_goes_too(settings: Any, tmp_path: Path) -> None:
    use(settings, tmp_path, Losing)
    turn = new_chat().begin(ask())
    with pytest.raises(LeaseLost):
        turn.keep_output(LARGE, CALL)
    assert files(tmp_path) == []
    turn.close()


def test_a_storage_may_have_names_of_its_own(settings: Any, tmp_path: Path) -> None:
    use(settings, tmp_path, Renaming)
    turn = new_chat().begin(ask())
    kept = turn.keep_output(LARGE, CALL)
    assert kept is not None
    assert turn.output(kept) == LARGE
    assert ToolOutput.objects.get(pk=kept).file.name.endswith("-renamed")
    turn.close()


def test_a_file_that_is_gone_is_an_output_that_is_not_there(settings: Any, tmp_path: Path) -> None:
    use(settings, tmp_path)
    turn = new_chat().begin(ask())
    kept = turn.keep_output(LARGE, CALL)
    assert kept is not None
    name = ToolOutput.objects.get(pk=kept).file.name
    default_storage.delete(name)
    assert turn.output(kept) is None
    default_storage.save(name, ContentFile(b"\xff"))
    assert turn.output(kept) is None
    turn.close()
