"""How the engine is called, by one that records it: no engine runs in the tests."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.sandbox.base import Place
from nexo_django.sandbox.container import ContainerSandbox


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "bin" / "docker"
    found.parent.mkdir()
    source = Path(__file__).with_name("engine.py").read_text()
    found.write_text(source.replace("/usr/bin/env python3", sys.executable))
    found.chmod(0o755)
    monkeypatch.setenv("PATH", f"{found.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mode").write_text("ok")
    return tmp_path


def calls(engine: Path) -> list[list[str]]:
    return [json.loads(line) for line in (engine / "calls").read_text().splitlines()]


def box(engine: Path) -> ContainerSandbox:
    return ContainerSandbox("image:1", root=engine / "boxes").for_chat(Place("Agent", "one"))


def test_a_command_is_closed_in(engine: Path) -> None:
    container = box(engine)
    container.write("a", b"x")
    assert container.run("echo 'hi' $HOME; --privileged").stdout == "ran\n"
    (call,) = calls(engine)
    text = " ".join(call)
    for option in (
        "run --rm", "--network none", "--cap-drop ALL", "--read-only", "--pids-limit 64",
        "--memory 512m", "--memory-swap 512m", "--security-opt no-new-privileges",
        "--pull never", f"source={container.folder},target=/workspace",
    ):  # fmt: skip
        assert option in text
    assert call[-3:] == ["image:1", "-c", "echo 'hi' $HOME; --privileged"]
    assert "privileged" not in " ".join(call[:-1]).replace("no-new-privileges", "")
    assert call[call.index("--user") + 1].split(":")[0] != "0" or os.geteuid() == 0
    container.discard()
    assert not container.folder.exists()


def test_a_timeout_ends_the_container_too(engine: Path) -> None:
    (engine / "mode").write_text("slow")
    assert box(engine).run("sleep 60", 1).stopped == "timeout"
    run, removed = calls(engine)
    assert removed == ["rm", "--force", run[run.index("--name") + 1]]


def test_an_engine_that_does_not_answer_is_said(engine: Path) -> None:
    (engine / "mode").write_text("down")
    with pytest.raises(ToolError, match="Cannot connect to the Docker daemon"):
        box(engine).run("true")


def test_without_an_engine_or_an_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(ConfigurationError, match="docker or podman"):
        ContainerSandbox("image:1", root=tmp_path).check()
    for image in ("", "--privileged", None):
        with pytest.raises(ConfigurationError, match="image"):
            ContainerSandbox(image)  # type: ignore[arg-type]
