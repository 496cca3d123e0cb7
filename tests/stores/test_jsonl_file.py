"""Files of JSON lines under kills, full disks and foreign hands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nexo_django.exceptions import StoreFailed
from nexo_django.stores.jsonl_file import JSONLFile

RECORDS = [{"n": 1, "text": "née 🦊\u2028"}, {"n": 2, "nested": {"a": [1, None]}}, {"n": 3}]


def number(data: Any) -> dict[str, Any]:
    if not isinstance(data["n"], int):
        raise TypeError("n is a number here")
    return dict(data)


def make(path: Path) -> JSONLFile[dict[str, Any]]:
    return JSONLFile(path, number)


def written(path: Path, *records: dict[str, Any]) -> None:
    file = make(path)
    file.open()
    for record in records:
        file.append(record)
    file.close()


def opened(path: Path) -> list[dict[str, Any]]:
    file = make(path)
    try:
        return file.open()
    finally:
        file.close()


def kept(path: Path) -> list[dict[str, Any]]:
    found = make(path).stretches()
    return [value for stretch in found for value in stretch.values[stretch.made :] if value]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_what_is_appended_is_read(path: Path) -> None:
    assert make(path).read() == []
    written(path, *RECORDS)
    assert make(path).read() == opened(path) == RECORDS
    assert [json.loads(line) for line in path.read_text().split("\n") if line] == RECORDS


def test_only_the_owner_may_read_the_files(path: Path) -> None:
    written(path, *RECORDS)
    path.write_bytes(path.read_bytes() + b"broken\n")
    file = make(path)
    file.open()
    file.replace(RECORDS[:1], archive=True)
    file.close()
    assert len(list(path.parent.iterdir())) == 3
    for beside in path.parent.iterdir():
        assert beside.stat().st_mode & 0o777 == 0o600


def test_a_file_cut_at_any_byte_loads(path: Path) -> None:
    written(path, *RECORDS)
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        # A record is whole when only its newline is missing.
        whole = sum(cut >= end - 1 for end in ends)
        assert make(path).read() == RECORDS[:whole]
        assert opened(path) == RECORDS[:whole]
        written(path, {"n": 9})
        assert make(path).read() == [*RECORDS[:whole], {"n": 9}]


def test_a_torn_line_is_quarantined_and_cut(path: Path) -> None:
    written(path, *RECORDS)
    path.write_bytes(path.read_bytes()[:-3])
    assert opened(path) == RECORDS[:2]
    assert path.with_name("log.jsonl.quarantine").read_bytes() == b'{"n":\n'
    assert path.read_bytes().endswith(b"}\n")
    assert opened(path) == RECORDS[:2]


@pytest.mark.parametrize(
    "bad",
    [
        b"not json",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"n": "text"}',
        b'{"m": 1}',
        b"[" * 100_000,
        b'{"n": ' + b"9" * 10_000 + b"}",
    ],
    ids=["text", "bytes", "list", "string", "null", "kind", "key", "depth", "digits"],
)
def test_a_bad_line_is_quarantined_and_never_fatal(path: Path, bad: bytes) -> None:
    written(path, *RECORDS)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], bad, *lines[1:]]))
    size = path.stat().st_size
    assert make(path).read() == RECORDS
    assert path.stat().st_size == size
    assert opened(path) == RECORDS
    assert path.with_name("log.jsonl.quarantine").read_bytes() == bad + b"\n"
    # Blanked, so that the lines after it stay where they were.
    assert path.stat().st_size == size
    written(path, {"n": 4})
    assert make(path).read() == [*RECORDS, {"n": 4}]
    assert path.with_name("log.jsonl.quarantine").read_bytes() == bad + b"\n"


def test_blank_lines_and_a_missing_newline_are_no_damage(path: Path) -> None:
    path.write_bytes(b'\n{"n": 1}\r\n\n  \n{"n": 2}')
    assert opened(path) == [{"n": 1}, {"n": 2}]
    written(path, {"n": 3})
    assert make(path).read() == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert not path.with_name("log.jsonl.quarantine").exists()


def test_replacing_archives_what_was_there(path: Path) -> None:
    written(path, *RECORDS)
    before = path.read_bytes()
    file = make(path)
    file.open()
    file.replace([{"n": 12}, RECORDS[2]], archive=True)
    file.append({"n": 4})
    assert make(path).read() == [{"n": 12}, RECORDS[2], {"n": 4}]
    assert path.with_name("log.jsonl.archive-000001-2").read_bytes() == before
    assert kept(path) == [*RECORDS, {"n": 4}]
    assert [stretch.made for stretch in make(path).stretches()] == [0, 2]
    file.replace([{"n": 1234}], archive=True)
    file.append({"n": 5})
    file.close()
    assert opened(path) == [{"n": 1234}, {"n": 5}]
    assert kept(path) == [*RECORDS, {"n": 4}, {"n": 5}]


def test_replacing_without_an_archive_keeps_only_the_new(path: Path) -> None:
    written(path, *RECORDS)
    file = make(path)
    file.open()
    file.replace(RECORDS[:1])
    file.close()
    assert kept(path) == RECORDS[:1]
    assert [p.name for p in path.parent.iterdir()] == ["log.jsonl"]


def test_an_archive_whose_replacement_never_happened_is_none(path: Path) -> None:
    written(path, *RECORDS)
    # What a kill leaves between the two steps of a replacement.
    os.link(path, path.with_name("log.jsonl.archive-000001-1"))
    path.with_name("log.jsonl.tmp").write_text('{"n": 7}\n')
    assert kept(path) == RECORDS
    assert opened(path) == RECORDS
    assert not path.with_name("log.jsonl.archive-000001-1").exists()
    file = make(path)
    file.open()
    file.replace([{"n": 8}], archive=True)
    file.close()
    assert kept(path) == RECORDS
    assert make(path).read() == [{"n": 8}]


def test_a_file_that_was_taken_away_takes_nothing_more(path: Path) -> None:
    written(path, *RECORDS)
    file = make(path)
    file.open()
    path.unlink()
    with pytest.raises(StoreFailed, match="removed or replaced"):
        file.append({"n": 4})
    path.write_text("")
    with pytest.raises(StoreFailed, match="removed or replaced"):
        file.append({"n": 4})
    file.close()
    with pytest.raises(StoreFailed, match="closed"):
        file.append({"n": 4})


def test_what_is_no_file_fails_as_ours(tmp_path: Path) -> None:
    file = make(tmp_path)
    with pytest.raises(StoreFailed):
        file.open()
    file.close()
    with pytest.raises(StoreFailed):
        file.read()
    with pytest.raises(StoreFailed):
        make(tmp_path / "missing" / "log.jsonl").open()


FULL = """
import resource, signal, sys
from pathlib import Path
from nexo_django.exceptions import StoreFailed
from nexo_django.stores.jsonl_file import JSONLFile

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = JSONLFile(Path(sys.argv[1]), dict)
file.open()
full = file.end() + 40
resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
try:
    file.append({"n": 4, "text": "x" * 100})
except StoreFailed as error:
    print("append", type(error).__name__, file.end())
try:
    file.replace([{"n": 5, "text": "x" * 1000}], archive=True)
except StoreFailed as error:
    print("replace", type(error).__name__, file.end())
file.append({"n": 6})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append({"n": 7})
"""


def test_a_full_disk_leaves_nothing_half_written(path: Path) -> None:
    written(path, *RECORDS)
    size = path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.splitlines() == [
        f"append StoreFailed {size}",
        f"replace StoreFailed {size}",
    ], done.stderr
    assert done.returncode == 0, done.stderr
    assert make(path).read() == [*RECORDS, {"n": 6}, {"n": 7}]
    assert [p.name for p in path.parent.iterdir()] == ["log.jsonl"]


def test_who_opens_a_file_is_told_of_lines_that_are_left_out(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b'{"n": 1}\nsecret\n\n{"n": 2}\n[7]\n{"to')
    assert opened(path) == [{"n": 1}, {"n": 2}]
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert said.getMessage() == (
        f"{path}: 3 line(s) hold no message that can be read (line 2, 5, 6). "
        f"They were moved to log.jsonl.quarantine and are left out."
    )
    caplog.clear()
    opened(path)
    assert caplog.records == []


def test_of_many_bad_lines_some_are_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"bad\n" * 1000)
    assert opened(path) == []
    assert "1000 line(s)" in caplog.text
    assert "8, 9, 10, ...)" in caplog.text
