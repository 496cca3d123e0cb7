"""What importing the package costs, and that it works without Django's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = "litellm tiktoken openai tokenizers boto3 aiohttp"


def run(code: str, *, settings: bool, cwd: Path = ROOT) -> str:
    """Run code in a Python of its own, and give what it prints."""
    environ = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    if settings:
        environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    environ["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


LIGHT = f"""
import sys
heavy = sorted(set("{HEAVY}".split()) & set(sys.modules))
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "code",
    [
        "import django; django.setup()",
        "from django.core.management import execute_from_command_line as run;"
        " run(['manage.py', 'check'])",
        "from django.core.management import execute_from_command_line as run;"
        " run(['manage.py', 'makemigrations', '--check', '--dry-run'])",
        "import django; django.setup(); import project.urls, nexo_django.session",
        "import django; django.setup(); from nexo_django import Session;"
        " Session.resume('Assistant', 'user-42')",
    ],
)
def test_what_every_process_does_imports_nothing_heavy(code):
    run(code + LIGHT, settings=True)


def test_the_package_imports_neither_models_nor_the_stack():
    run(
        "import nexo_django, sys\n"
        "assert 'Session' in dir(nexo_django) and nexo_django.__version__\n"
        "loaded = {name for name in sys.modules if name.startswith('nexo_django.')}\n"
        "assert not loaded, loaded\n"
        "assert 'django' not in sys.modules and 'pydantic' not in sys.modules" + LIGHT,
        settings=False,
    )


def test_every_public_name_is_there_without_settings():
    run(
        "import nexo_django\n"
        "for name in nexo_django.__all__: getattr(nexo_django, name)\n"
        "from nexo_django.middleware import SessionLog, SystemPrompt, ToolResultLoop\n"
        "from nexo_django.middleware import MaxIterations, DefaultToolPipeline\n"
        "from nexo_django.middleware import DefaultCompactionPipeline\n"
        "from nexo_django.compaction import CompactionPipeline, ToolResults, SlidingWindow\n"
        "from nexo_django.compaction import Summarize\n"
        "import sys; assert 'nexo_django.models' not in sys.modules" + LIGHT,
        settings=False,
    )


def test_a_name_that_is_not_there_is_an_attribute_error():
    run(
        "import nexo_django\n"
        "try: nexo_django.Nothing\n"
        "except AttributeError as error: assert 'Nothing' in str(error)\n"
        "else: raise SystemExit(1)",
        settings=False,
    )


def test_a_session_without_settings_remembers_in_memory(tmp_path):
    printed = run(
        "from nexo_django import Agent, Session\n"
        "class Assistant(Agent):\n"
        "    instructions = 'You are concise.'\n"
        "with Session.resume(Assistant, 'user-42') as session:\n"
        "    session.prompt('My name is Mac.')\n"
        "print(Session.resume(Assistant, 'user-42').prompt('What is my name?'))\n"
        "print(len(Session.resume(Assistant, 'user-43').messages))\n",
        settings=False,
        cwd=tmp_path,
    )
    assert "Mac" in printed
    assert printed.splitlines()[-1] == "0"
    assert list(tmp_path.iterdir()) == []


# Give a few variables on to a program that they start, and go by none of them.
PASS_ON = ("nexo_django/mcp/config.py", "nexo_django/sandbox/commands.py")


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in (ROOT / "nexo_django").rglob("*.py")
        if str(path.relative_to(ROOT)) not in PASS_ON
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_package_does_not_read_the_environment(path):
    source = path.read_text()
    allowed = source.replace("os.environ.setdefault(", "")
    assert "os.environ" not in allowed
    assert "os.getenv" not in source
    assert "import environ" not in source
