"""The documentation is true: its code runs, its tables are complete, and it builds.

A page's ```python blocks run in order in a process of their own, with a database of their own; a
```text block after one is what it prints. A block after `<!-- not run: reason -->` is left out.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import types
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\{code-block\} )?(\w+)$")
BASE_OPTIONS = [
    "version",
    "verbosity",
    "settings",
    "pythonpath",
    "traceback",
    "no_color",
    "force_color",
    "skip_checks",
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str
    caption: str
    run: bool

    @property
    def code(self):
        """The code, compiled so that a traceback names the page's own lines."""
        return "\n" * (self.line - 1) + self.text


def blocks(page: Path) -> Iterator[Block]:
    """Give the fenced blocks of a page."""
    lines = page.read_text().splitlines()
    index, before = 0, ""
    while index < len(lines):
        if match := FENCE.match(lines[index]):
            indent, start = len(match[1]), index + 1
            end = next(i for i in range(start, len(lines)) if lines[i].strip() == "```")
            caption = ""
            if lines[start].strip().startswith(":caption:"):
                caption = lines[start].partition(":caption:")[2].strip()
                start += 1
            text = "\n".join(line[indent:] for line in lines[start:end]) + "\n"
            run = not before.startswith("<!-- not run:")
            yield Block(match[3], start + 1, text, caption, run)
            index = end
        before = lines[index].strip() or before
        index += 1


def run_page(page: Path) -> None:
    """Run a page's code in this process; raise AssertionError where its output differs."""
    if "<!-- no settings -->" not in page.read_text():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
    module = sys.modules["page"] = types.ModuleType("page")
    printed = ""
    for block in blocks(page):
        if block.language == "text" and printed:
            same = doctest.OutputChecker().check_output(block.text, printed, FLAGS)
            assert same, f"{page}:{block.line} printed\n{printed}"
        printed = ""
        if block.language == "python" and block.run:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, str(page), "exec"), module.__dict__)
            printed = out.getvalue()
    run_cases(module)


def run_cases(module: types.ModuleType) -> None:
    """Run the test cases that a page shows."""
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    found = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == "page"]
    cases = [load(cls) for cls in found if issubclass(cls, unittest.TestCase)]
    if cases:
        from django.test.utils import setup_test_environment

        setup_test_environment()
        said = io.StringIO()
        result = unittest.TextTestRunner(said).run(unittest.TestSuite(cases))
        assert result.testsRun, said.getvalue()
        assert result.wasSuccessful(), said.getvalue()


def environment(folder: Path) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DJANGO_", "DATABASE_"))},
        "PYTHONPATH": str(ROOT),
        "DATABASE_URL": f"sqlite:///{folder / 'docs.sqlite3'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # The tests have no network, and a build must not wait for one.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def pages() -> list[str]:
    found = (path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md")))
    return [
        str(page)
        for page in found
        if page.parts[0] not in ("tutorial", "_build")
        and any(b.language == "python" and b.run for b in blocks(DOCS / page))
    ]


@pytest.mark.parametrize("page", pages())
def test_code_runs_as_printed(page, tmp_path):
    environ = environment(tmp_path)
    if "<!-- no settings -->" not in (DOCS / page).read_text():
        environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_docs", str(DOCS / page)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]


DRIVE = """
import asyncio, sys
from pathlib import Path
from django.test import AsyncClient, Client, override_settings
from django.test.utils import setup_test_environment
from tests.test_docs import run_page

run_page(Path(sys.argv[1]))
setup_test_environment()
from django.contrib.auth.models import User
user, _ = User.objects.get_or_create(username="driven")

async def read(response):
    parts = response.streaming_content if response.streaming else [response.content]
    if getattr(response, "is_async", False):
        return b"".join([part async for part in parts]).decode()
    return b"".join(parts).decode()

async def post(url, text):
    client = AsyncClient()
    await client.aforce_login(user)
    response = await client.post(url, text)
    return response.status_code, await read(response)

def posted(url, text):
    client = Client()
    client.force_login(user)
    response = client.post(url, text)
    return response.status_code, asyncio.run(read(response))

with override_settings(ROOT_URLCONF="page"):
    for url, how in URLS:
        send = posted if how == "sync" else lambda *given: asyncio.run(post(*given))
        assert Client().post(url, {"text": "Hello."}).status_code == 302, url
        assert send(url, {})[0] == 400, url
        assert send(url, {"text": "x" * 1_000_001})[0] == 400, url
        status, said = send(url, {"text": "My name is Mac."})
        assert status == 200 and "Mac" in said, (url, status, said)
"""


@pytest.mark.parametrize(
    ("page", "urls"),
    [
        ("how-to/django-views.md", [("/ask", "sync"), ("/ask-async", "async")]),
        ("how-to/streaming.md", [("/chat-wsgi", "sync"), ("/chat", "async")]),
    ],
)
def test_the_views_answer_what_they_say(page, urls, tmp_path):
    environ = {**environment(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", f"URLS = {urls!r}\n{DRIVE}", str(DOCS / page)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_tutorial_works_as_written(tmp_path):
    """Type what the tutorial says: files are written, commands run, outputs compared."""
    environ = environment(tmp_path)
    folder = tmp_path
    for block in blocks(DOCS / "tutorial/first-assistant.md"):
        if not block.run:
            continue
        if block.caption:
            name, _, at_the_end = block.caption.partition(", ")
            path = folder / name
            path.write_text((path.read_text() if at_the_end else "") + block.text)
        elif block.language == "console":
            for command, expected in commands(block.text):
                if command.startswith("cd "):
                    folder /= command[3:]
                    continue
                printed = typed(command, folder, environ)
                same = doctest.OutputChecker().check_output(expected, printed, FLAGS)
                assert same or not expected, f"$ {command}\n{printed}\nnot\n{expected}"


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Give each command of a console block with the output shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def typed(command: str, folder: Path, environ: dict[str, str]) -> str:
    words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, *words[1:]] if words[0] == "python" else words,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stderr[-4000:]}"
    return done.stdout


def table(page: str) -> dict[str, str]:
    """Give the rows of a page's tables: the first cell's code to the whole row."""
    rows = re.findall(r"^\| `([^`]+)`.*$", (DOCS / page).read_text(), flags=re.MULTILINE)
    lines = [ln for ln in (DOCS / page).read_text().splitlines() if ln.startswith("| `")]
    return dict(zip(rows, lines, strict=True))


def test_the_settings_page_is_complete():
    from nexo_django import conf

    rows = table("reference/settings.md")
    assert set(rows) == set(conf.DEFAULTS)
    for key, default in conf.DEFAULTS.items():
        shown = f"`{default!r}`".replace("datetime.", "").replace("'", '"')
        assert shown in rows[key], f"{key}: its default is {shown}"


def test_the_errors_page_is_complete():
    from nexo_django import exceptions

    classes = {
        name: value
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.NexoError)
    }
    assert set(table("reference/errors.md")) == set(classes) - {"NexoError"}
    tree = (DOCS / "reference/errors.md").read_text().split("## The tree")[1]
    depth = {name: len(c.__mro__) for name, c in classes.items()}
    shown = re.findall(r"^([│├└─ ]*)(\w+)", tree, flags=re.MULTILINE)
    indents = {name: len(indent) // 4 for indent, name in shown if name in classes}
    assert set(indents) == set(classes)
    for name, cls in classes.items():
        parent = cls.__mro__[1].__name__
        if parent in indents and depth[name]:
            assert indents[name] == indents[parent] + 1, name


def test_the_events_page_is_complete():
    from nexo_django import events

    cells = re.findall(r"^\| (`.+?`) \|", (DOCS / "reference/events.md").read_text(), re.MULTILINE)
    shown = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert set(events.EVENTS) <= shown


def test_the_models_page_is_complete():
    from django.apps import apps

    rows = table("reference/models.md")
    assert set(rows) == {m.__name__ for m in apps.get_app_config("nexo_django").get_models()}


def test_the_commands_page_is_complete():
    from django.core.management import get_commands, load_command_class

    text = (DOCS / "reference/commands.md").read_text()
    for name in (n for n, app in get_commands().items() if app == "nexo_django"):
        _before, _title, section = text.partition(f"## {name}\n")
        section = section.partition("\n## ")[0]
        parser = load_command_class("nexo_django", name).create_parser("manage.py", name)
        common = {"help", *BASE_OPTIONS}
        options = {o for a in parser._actions if a.dest not in common for o in a.option_strings}
        assert options <= set(re.findall(r"--[a-z-]+", section)), name


def test_it_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", DOCS, tmp_path / "html"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
