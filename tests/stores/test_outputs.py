"""Whole outputs, on every store: kept for their own chat, for a time, and gone with it."""

from __future__ import annotations

import os
import stat
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.files.storage import default_storage
from django.utils import timezone

from nexo_django import Session, retention, tool
from nexo_django.messages import USER, Message, ToolCall
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.choice import default_store
from nexo_django.stores.memory import MemoryStore
from tests.support import Script, asking, call, make_agent

CALL = ToolCall("c1", "look")
LARGE = "🦊\n" * 300_000


@pytest.fixture(
    params=[
        "memory",
        "jsonl",
        pytest.param("database", marks=pytest.mark.django_db(transaction=True)),
    ]
)
def store(request: Any, tmp_path: Path, settings: Any) -> str:
    settings.MEDIA_ROOT = tmp_path / "media"
    chosen = f"jsonl:{tmp_path / 'logs'}" if request.param == "jsonl" else request.param
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": chosen}
    MemoryStore.reset()
    return str(request.param)


def chat_of() -> Any:
    return default_store().chat("Outputs", uuid.uuid4().hex)


def begun(chat: Any) -> Any:
    return chat.begin(TurnRequest(Message(USER, "hello"), wait=0, model="nexo/offline"))


def age(store: str, chat: Any, days: int) -> None:
    """Make every output of a chat so many days older."""
    if store == "memory":
        kept = MemoryStore.rooms[chat.name].outputs
        kept.texts = {k: (at - days * 86400, text) for k, (at, text) in kept.texts.items()}
    elif store == "jsonl":
        then = time.time() - days * 86400
        for path in Path(f"{chat.path}.outputs").iterdir():
            os.utime(path, (then, then))
    else:
        from nexo_django.models import ToolOutput

        for row in ToolOutput.objects.filter(chat__instance_id=chat.instance_id):
            row.expires_at -= timedelta(days=days)
            row.save()


@pytest.mark.parametrize("text", ["", "short", "é\r\n" * 1000, "a\x00b\ud800", LARGE])
def test_a_text_comes_back_as_a_row_can_hold_it(store: str, text: str) -> None:
    turn = begun(chat_of())
    kept = turn.keep_output(text, CALL)
    assert turn.output(kept) == text.replace("\x00", "�").replace("\ud800", "�")
    turn.close()


def test_it_is_read_in_later_turns_of_its_chat_only(store: str) -> None:
    chat, other = chat_of(), chat_of()
    turn = begun(chat)
    kept = turn.keep_output("secret", CALL)
    turn.close()
    later, stranger = begun(chat), begun(other)
    assert later.output(kept) == "secret"
    assert stranger.output(kept) is None
    for none in (str(uuid.uuid4()), "", "../x", "\x00", "x" * 300, f"../{kept}"):
        assert later.output(none) is None
    later.close()
    stranger.close()


def test_it_expires_and_is_purged(store: str) -> None:
    chat, other = chat_of(), chat_of()
    turn, fresh = begun(chat), begun(other)
    old = [turn.keep_output(text, CALL) for text in ("old", "older", LARGE)]
    new = fresh.keep_output("new", CALL)
    age(store, chat, 8)
    assert [turn.output(kept) for kept in old] == [None, None, None]
    assert retention.purge_outputs(batch_size=2) == 3
    assert retention.purge_outputs(batch_size=2) == 0
    assert fresh.output(new) == "new"
    assert retention.purge_outputs(timezone.now() + timedelta(days=8)) == 1
    assert fresh.output(new) is None
    turn.close()
    fresh.close()


def test_without_a_retention_it_stays(store: str, settings: Any) -> None:
    settings.NEXO = {**settings.NEXO, "OUTPUT_RETENTION": None}
    turn = begun(chat_of())
    kept = turn.keep_output("for ever", CALL)
    assert retention.purge_outputs(timezone.now() + timedelta(days=9999)) == 0
    assert turn.output(kept) == "for ever"
    turn.close()


def test_it_goes_with_its_chat(store: str, tmp_path: Path) -> None:
    chat = chat_of()
    turn = begun(chat)
    small, large = turn.keep_output("small", CALL), turn.keep_output(LARGE, CALL)
    turn.close()
    chat.delete()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    turn = begun(chat)
    assert (turn.output(small), turn.output(large)) == (None, None)
    turn.close()


def test_files_are_for_their_owner_only(store: str, tmp_path: Path) -> None:
    turn = begun(chat_of())
    turn.keep_output("small", CALL)
    turn.keep_output(LARGE, CALL)
    turn.close()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in {path.parent for path in files if "outputs" in str(path.parent)}:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    if store == "database":
        # The host's own folder is left as others use it.
        assert stat.S_IMODE((tmp_path / "media").stat().st_mode) & 0o055


@pytest.mark.parametrize("size", [0, True, "many"])
def test_a_batch_has_a_size(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        retention.purge_outputs(batch_size=size)


def test_a_file_that_cannot_be_deleted_is_tried_again(
    settings: Any, tmp_path: Path, db: Any
) -> None:
    settings.MEDIA_ROOT = tmp_path / "media"
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}
    from nexo_django.models import ToolOutput

    turn = begun(chat_of())
    kept = [turn.keep_output(text, CALL) for text in (LARGE, "small", LARGE)]
    turn.close()
    blocked = Path(default_storage.path(ToolOutput.objects.get(pk=kept[0]).file.name))
    blocked.unlink()
    (blocked / "in the way").mkdir(parents=True)
    later = timezone.now() + timedelta(days=8)
    assert retention.purge_outputs(later, batch_size=1) == 2
    assert [str(row.pk) for row in ToolOutput.objects.all()] == [kept[0]]
    (blocked / "in the way").rmdir()
    blocked.rmdir()
    assert retention.purge_outputs(later, batch_size=1) == 1
    assert ToolOutput.objects.count() == 0


def test_a_model_reads_on_where_a_result_was_cut(store: str) -> None:
    lines = [f"line {n}" for n in range(5000)]

    @tool
    def log() -> str:
        """Give many lines."""
        return "\n".join(lines)

    def read(env: Any) -> Message:
        shown = env.messages[-1].content
        kept = shown.partition('read_output(id="')[2].partition('"')[0]
        return asking(call("read_output", id=kept, offset=4000, limit=2))

    model = Script(asking(call("log")), read, "done")
    session = Session.resume(make_agent(model, tools=[log]), uuid.uuid4().hex)
    session.prompt("Look.")
    assert (model.requests[-1][-1].content or "").startswith("line 4000\nline 4001\n")
