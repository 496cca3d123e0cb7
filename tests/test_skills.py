"""Skills: listed in the prompt, read through the tool, and nothing outside their folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django import Session, checks, skills
from nexo_django.exceptions import ConfigurationError, ToolError
from nexo_django.pipeline import Env
from nexo_django.stores.memory import MemoryStore
from tests.support import Script, asking, call, make_agent

PDF = "---\nname: pdf\ndescription: Fill in\n  PDF forms.\n---\n\n# Forms\n\nUse scripts/fill.py.\n"


@pytest.fixture(autouse=True)
def root(tmp_path):
    MemoryStore.reset()
    folder = tmp_path / "skills"
    write(folder / "pdf" / "SKILL.md", PDF)
    write(folder / "pdf" / "scripts" / "fill.py", "print('filled')\n")
    write(tmp_path / "secret.txt", "a secret")
    with override_settings(NEXO={"SESSION_STORE": "memory", "SKILLS_PATH": str(folder)}):
        yield folder


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(name: Any = "pdf", resource: Any = None) -> str:
    class Assistant:
        skills = ["pdf"]

    return skills.skill.fn(Env(agent=Assistant()), name, resource)


def test_an_agent_reads_a_skill_when_it_needs_it():
    script = Script(
        asking(call("skill", name="pdf")),
        asking(call("skill", name="pdf", resource="scripts/fill.py")),
        asking(call("skill", name="taxes")),
        "filled in",
    )
    session = Session.resume(make_agent(script, instructions="Be brief.", skills=["pdf"]), "1")
    assert session.prompt("Fill in this form.").content == "filled in"
    system = script.requests[0][0].content
    assert system.startswith("Be brief.\n\nYou have skills")
    assert system.endswith("\n- pdf: Fill in PDF forms.")
    assert "fill.py" not in system
    body, file, missing = [m for m in session.history() if m.role == "tool"]
    assert body.content.startswith("# Forms\n\nUse scripts/fill.py.\n\nFiles of this skill")
    assert body.content.endswith("- scripts/fill.py (16 bytes)")
    assert file.content == "print('filled')\n"
    assert missing.is_error
    assert missing.content == "There is no skill 'taxes'. The skills are: pdf."


def test_the_system_text_is_the_same_in_every_turn():
    script = Script()
    session = Session.resume(make_agent(script, skills=["pdf"]), "1")
    session.prompt("One.")
    session.prompt("Two.")
    assert script.requests[0][0] == script.requests[1][0]


def test_an_agent_without_skills_reads_nothing(monkeypatch):
    def refuse(*args):
        raise AssertionError("a turn without skills looked for some")

    monkeypatch.setattr(skills, "_state", refuse)
    script = Script()
    Session.resume(make_agent(script), "1").prompt("Hello.")
    assert [m.role for m in script.requests[0]] == ["user"]


def test_a_changed_skill_is_read_again(root):
    first = skills.load("pdf")
    assert skills.load("pdf") is first
    write(root / "pdf" / "SKILL.md", PDF.replace("Fill in", "Sign and fill in"))
    assert skills.load("pdf").description == "Sign and fill in PDF forms."


def test_the_first_folder_counts(root, tmp_path):
    write(tmp_path / "other" / "pdf" / "SKILL.md", PDF.replace("Fill in", "Shred"))
    write(tmp_path / "other" / "tax" / "SKILL.md", PDF.replace("pdf", "tax"))
    with override_settings(NEXO={"SKILLS_PATH": [root, tmp_path / "other"]}):
        assert skills.load("pdf").description == "Fill in PDF forms."
        assert skills.load("tax").folder == tmp_path / "other" / "tax"
        assert skills.available() == ["pdf", "tax"]


def test_a_relative_path_is_below_base_dir(root, tmp_path):
    with override_settings(BASE_DIR=tmp_path, NEXO={"SKILLS_PATH": "skills"}):
        assert skills.load("pdf").folder == root / "pdf"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("# Just text", "has no front matter"),
        ("---\nname: bad\n", "has no front matter"),
        ("---\nname: bad\ndescription: [unclosed\n---\n", "has no valid YAML in line"),
        ("---\n- a list\n---\n", "has no name and description"),
        ("---\nname: bad\n---\n", "has None as its description"),
        ("---\nname: bad\ndescription: ''\n---\n", "has '' as its description"),
        ("---\nname: 5\ndescription: d\n---\n", "has 5 as its name"),
        ("---\nname: other\ndescription: d\n---\n", "must be named as its folder, 'bad'"),
        (f"---\nname: bad\ndescription: {'d' * 1025}\n---\n", "1024 are allowed"),
        (b"---\nname: bad\ndescription: \xff\n---\n", "can't be read"),
        ("---\nname: bad\ndescription: !!python/object:os.system d\n---\n", "has no valid YAML"),
        (f"---\nname: bad\ndescription: d\n---\n{'x' * 300_000}", "262144 are allowed"),
    ],
)
def test_a_skill_that_can_not_be_used(root, content, said):
    path = write(root / "bad" / "SKILL.md", content)
    with pytest.raises(ConfigurationError) as refused:
        skills.load("bad")
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    (found,) = checks.check_skills()
    assert found.id == "nexo_django.W020"
    assert found.msg == str(refused.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["pfd"], "Did you mean 'pdf'?"),
        (["../pdf"], "is no skill's name"),
        (["a/b"], "is no skill's name"),
        ([None], "is no skill's name"),
        ("pdf", "give a list of names"),
        (5, "give a list of names"),
    ],
)
def test_an_agent_with_a_skill_that_is_not_there(root, names, said):
    agent = make_agent(Script(), name="Checked", skills=names)
    with pytest.raises(ConfigurationError) as refused:
        Session.resume(agent, "1").prompt("Hello.")
    assert said in str(refused.value)
    assert str(refused.value).startswith("Checked.skills")
    assert MemoryStore().chat("Checked", "1").exists() is False
    found = [message for message in checks.check_agents() if message.obj is agent]
    assert [(message.id, message.msg) for message in found] == [
        ("nexo_django.E005", str(refused.value))
    ]


def test_skills_without_a_folder_for_them(tmp_path):
    with override_settings(NEXO={}), pytest.raises(ConfigurationError, match="set NEXO"):
        skills.load("pdf")
    with override_settings(NEXO={"SKILLS_PATH": str(tmp_path / "nowhere")}):
        (found,) = checks.check_skills()
        assert "which is no folder" in found.msg


@pytest.fixture
def trapped(root, tmp_path):
    """A skill with everything in it that must not be read."""
    folder = root / "pdf"
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "zero").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    write(folder / "large.bin", b"\x00" * (skills.MAX_RESOURCE + 1))
    write(folder / "image.png", b"\x89PNG\xff")
    write(folder / ".hidden" / "key", "a secret")
    (folder / "inside.txt").symlink_to(folder / "scripts" / "fill.py")
    return folder


ESCAPES = [
    "../../secret.txt",
    "..",
    ".",
    "",
    "scripts",
    "scripts/../../../secret.txt",
    "link.txt",
    "up/secret.txt",
    "zero",
    "pipe",
    "/etc/passwd",
    "/dev/stdin",
    "~/.profile",
    "scripts/fill.py\x00.txt",
    "a" * 5000,
    "\udcff",
    ".hidden/key",
    "no.txt",
    "large.bin",
]


@pytest.mark.parametrize("resource", [name for name in ESCAPES if name])
def test_nothing_else_is_read(trapped, resource):
    with pytest.raises(ToolError):
        read(resource=resource)


def test_what_is_listed_can_be_read(trapped):
    names = [name for name, _ in skills.load("pdf").resources]
    assert names == ["image.png", "inside.txt", "large.bin", "scripts/fill.py"]
    assert read(resource="inside.txt") == "print('filled')\n"
    assert read(resource="image.png") == "(image.png: 5 bytes that are not text)"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(["..", ".", "", "up", "scripts", "secret.txt", "fill.py", "~"])
        ).map("/".join),
    )
)
def test_no_path_leads_out(trapped, resource):
    try:
        told = read(resource=resource)
    except ToolError:
        return
    assert "a secret" not in told


def test_a_long_list_of_files_is_cut(root):
    for number in range(skills.MAX_RESOURCES + 50):
        write(root / "pdf" / "assets" / f"{number:03}.txt", "x")
    told = read()
    assert told.count("\n- ") == skills.MAX_RESOURCES + 1
    assert told.endswith("- and more, which are not listed")


def test_a_skill_is_a_built_in_tool_too():
    script = Script(asking(call("skill", name="pdf")))
    session = Session.resume(make_agent(script, tools=["skill"], skills=["pdf"]), "1")
    session.prompt("Go.")
    assert "# Forms" in session.history()[-2].content
