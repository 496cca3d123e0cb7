"""The files of a chat, on every store: exact, its own, fenced by the lease, and gone with it."""

from __future__ import annotations

import stat
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from nexo_django.exceptions import LeaseLost, ToolError
from nexo_django.messages import USER, Message
from nexo_django.sandbox.files import HeldFiles, digest, keepable
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.choice import default_store
from nexo_django.stores.files import FolderFiles
from nexo_django.stores.memory import MemoryStore

LARGE = bytes(range(256)) * 5000
PATHS = ["a", "A", "é", "e\u0301", "a ", " a", "a/b", "🦊", "x" * 512, "../a", "/etc/passwd", "a\n"]


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
    return default_store().chat("Files", uuid.uuid4().hex)


def begun(chat: Any) -> Any:
    return chat.begin(TurnRequest(Message(USER, "hello"), wait=0, model="nexo/offline"))


def stored_under(path: Path) -> list[Path]:
    return [found for found in path.rglob("*") if found.is_file()]


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x00\xff\n\r", LARGE], ids=["empty", "x", "raw", "large"]
)
def test_a_file_comes_back_exactly_in_later_turns(store: str, data: bytes) -> None:
    chat = chat_of()
    turn = begun(chat)
    turn.files.write("a/b.bin", data)
    assert turn.files.read("a/b.bin") == data
    turn.close()
    later = begun(chat)
    assert later.files.read("a/b.bin") == data
    assert later.files.list() == [("a/b.bin", len(data), digest(data))]
    later.close()


def test_every_path_is_another_file(store: str) -> None:
    turn = begun(chat_of())
    for number, path in enumerate(PATHS):
        turn.files.write(path, str(number).encode())
    assert [turn.files.read(path) for path in PATHS] == [str(n).encode() for n in range(len(PATHS))]
    assert [info.path for info in turn.files.list()] == sorted(PATHS)
    turn.close()


@pytest.mark.parametrize("path", ["", "x" * 513, "a\x00b", "\ud800"])
def test_a_path_that_can_not_be_kept_is_refused(store: str, path: str) -> None:
    turn = begun(chat_of())
    with pytest.raises(ToolError):
        turn.files.write(path, b"x")
    assert turn.files.list() == []
    turn.close()


def test_sizes_change_both_ways_and_nothing_is_left_behind(store: str, tmp_path: Path) -> None:
    chat = chat_of()
    turn = begun(chat)
    for data in (b"small", LARGE, LARGE[::-1], b"small again", LARGE):
        turn.files.write("f", data)
        assert turn.files.read("f") == data
        assert len(turn.files.list()) == 1
    assert len(stored_under(tmp_path / "media")) == (store == "database")
    assert turn.files.remove("f") is True
    assert turn.files.remove("f") is False
    assert turn.files.read("f") is None
    assert turn.files.list() == []
    assert stored_under(tmp_path / "media") == []
    turn.close()


def test_another_chat_sees_nothing(store: str) -> None:
    turn, other = begun(chat_of()), begun(chat_of())
    turn.files.write("secret", b"x")
    assert other.files.read("secret") is None
    assert other.files.list() == []
    assert other.files.remove("secret") is False
    assert turn.files.read("secret") == b"x"
    turn.close()
    other.close()


def test_a_turn_that_is_over_writes_nothing(store: str) -> None:
    chat = chat_of()
    turn = begun(chat)
    files = turn.files
    files.write("f", b"before")
    turn.close()
    for data in (b"after", LARGE):
        with pytest.raises(LeaseLost):
            files.write("f", data)
    with pytest.raises(LeaseLost):
        files.remove("f")
    later = begun(chat)
    assert later.files.read("f") == b"before"
    later.close()


def test_files_go_with_their_chat(store: str, tmp_path: Path) -> None:
    chat = chat_of()
    turn = begun(chat)
    turn.files.write("small", b"x")
    turn.files.write("large", LARGE)
    turn.close()
    chat.delete()
    assert [path for path in stored_under(tmp_path) if "sqlite" not in path.name] == []
    turn = begun(chat)
    assert turn.files.list() == []
    turn.close()


def test_threads_of_a_turn_share_them(store: str) -> None:
    turn = begun(chat_of())
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                turn.files.write(f"f{number}", str(step).encode())
                turn.files.write("shared", str(number).encode())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert {turn.files.read(f"f{n}") for n in range(4)} == {b"4"}
    assert len(turn.files.list()) == 5
    turn.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("at", ["announced", "saved", "put"])
def test_a_kill_in_a_large_write_leaves_the_old_file_and_no_stray(
    at: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nexo_django.models import SandboxFile
    from nexo_django.stores.database_files import DatabaseFiles

    settings.MEDIA_ROOT = tmp_path
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}
    chat = chat_of()
    turn = begun(chat)
    turn.files.write("f", LARGE)

    class Killed(BaseException):
        pass

    def killed(*args: Any) -> Any:
        raise Killed

    step = {"announced": "_saved", "saved": "_put", "put": "_forget"}[at]
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFiles, step, killed)
        with pytest.raises(Killed):
            turn.files.write("f", LARGE[::-1])
    turn.close()
    later = begun(chat)
    assert later.files.read("f") == (LARGE[::-1] if at == "put" else LARGE)
    assert len(later.files.list()) == 1
    # The next large write clears what was left.
    later.files.write("g", LARGE)
    assert len(stored_under(tmp_path)) == SandboxFile.objects.count() == 2
    later.close()
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseFiles, step, killed)
        again = begun(chat)
        with pytest.raises(Killed):
            again.files.write("f", LARGE)
        again.close()
    chat.delete()
    assert stored_under(tmp_path) == []


@pytest.mark.django_db(transaction=True)
def test_a_storage_that_fails_is_a_result_and_keeps_the_old_file(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.files.storage import FileSystemStorage

    settings.MEDIA_ROOT = tmp_path
    settings.NEXO = {**django_settings.NEXO, "SESSION_STORE": "database"}
    turn = begun(chat_of())
    turn.files.write("f", LARGE)

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystemStorage, "save", full)
        with pytest.raises(ToolError, match="could not be written"):
            turn.files.write("f", b"y" * len(LARGE))
    assert turn.files.read("f") == LARGE
    assert len(turn.files.list()) == 1
    for path in stored_under(tmp_path):
        path.write_bytes(b"changed")
    with pytest.raises(ToolError, match="changed there"):
        turn.files.read("f")
    turn.close()


def test_a_folder_is_for_its_owner_and_skips_what_it_does_not_know(tmp_path: Path) -> None:
    files = FolderFiles(tmp_path / "kept")
    files.write("a", b"x")
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert [stat.S_IMODE(p.stat().st_mode) for p in stored_under(tmp_path)] == [0o600]
    (tmp_path / "kept" / "stray").write_bytes(b"\xff\x00")
    (tmp_path / "kept" / "half.tmp").write_bytes(b'["b", 1, "x"]\n')
    assert [info.path for info in files.list()] == ["a"]


@examples(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from("wr"), st.text(max_size=20), st.binary(max_size=50)), max_size=15
    )
)
def test_memory_and_folder_agree(tmp_path: Path, steps: list[tuple[str, str, bytes]]) -> None:
    held, folder = HeldFiles(), FolderFiles(tmp_path / uuid.uuid4().hex)
    for step, path, data in steps:
        try:
            keepable(path)
        except ToolError:
            continue
        if step == "w":
            held.write(path, data)
            folder.write(path, data)
        else:
            assert held.remove(path) == folder.remove(path)
    assert held.list() == folder.list()
    assert all(folder.read(info.path) == held.read(info.path) for info in held.list())
