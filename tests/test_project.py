"""The example project, and that what is said in two places is said alike."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nexo_django
from project.agents import weather

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = """
from django.conf import settings
config = settings.DATABASES["default"]
print(config["ENGINE"], config["NAME"], config["OPTIONS"], config["ATOMIC_REQUESTS"])
print(settings.NEXO)
"""


def manage(*words: str, **environ: str) -> str:
    """Run a command of the example project, and give what it prints."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DATABASE_", "NEXO_"))}
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_readmes_two_commands_remember(tmp_path):
    database = f"sqlite:///{tmp_path}/demo.sqlite3"
    manage("migrate", "--verbosity", "0", DATABASE_URL=database)
    readme = (ROOT / "README.md").read_text()
    prompts = re.findall(
        r'^\$ python manage.py nexo_chat (\w+) (\S+) --prompt "(.+)"$', readme, re.M
    )
    assert len(prompts) == 2
    for agent, instance, text in prompts:
        printed = manage("nexo_chat", agent, instance, "--prompt", text, DATABASE_URL=database)
    assert "Mac" in printed


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ["sqlite3", "db.sqlite3", "'transaction_mode': 'IMMEDIATE'", "WAL", "False"]),
        ({"DATABASE_URL": "mysql://root@127.0.0.1/x"}, ["mysql x", "'charset': 'utf8mb4'"]),
        ({"DATABASE_URL": "postgres://me@127.0.0.1/x"}, ["postgresql x"]),
        ({"NEXO_MODEL": "openai/gpt-4o"}, ["{'DEFAULT_MODEL': 'openai/gpt-4o'}"]),
        ({"ATOMIC_REQUESTS": "true"}, ["True"]),
    ],
)
def test_the_environment_is_read_by_the_settings(environ, said):
    code = f"import django; django.setup = lambda: None\n{SETTINGS}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DATABASE_", "NEXO_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**kept, **environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for text in said:
        assert text in done.stdout


def test_atomic_requests_get_a_warning():
    code = (
        "from django.core.management import execute_from_command_line as run; run(['x', 'check'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "ATOMIC_REQUESTS": "1", "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "nexo_django.W001" in done.stderr


def test_the_example_tool_answers():
    assert "snow" in weather("Oslo")
    assert weather("Atlantis") == "No weather station in Atlantis."


def test_the_admin_is_served():
    from django.test import Client

    assert Client().get("/admin/login/").status_code == 200


def test_the_servers_find_their_applications():
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    from project import asgi, wsgi

    assert isinstance(asgi.application, ASGIHandler)
    assert isinstance(wsgi.application, WSGIHandler)


def test_the_celery_app_has_the_tasks():
    pytest.importorskip("celery")
    code = (
        "from project import celery_app as app\n"
        "assert 'nexo_django.prompt' in app.tasks and app.conf.task_ignore_result\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_the_version_is_one():
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d[^\]]*)\]", changes, flags=re.MULTILINE)
    assert nexo_django.__version__ == PROJECT["project"]["version"] == released[0]
    assert f"Version {nexo_django.__version__} " in (ROOT / "README.md").read_text()


def test_requirements_are_the_packages_and_the_projects():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = {line for line in lines if line and not line.startswith("#")}
    declared = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["project"]
    assert required == set(declared)


def test_litellms_compromised_releases_are_below_the_floor():
    (floor,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("litellm")]
    low, high = floor.removeprefix("litellm>=").split(",<")
    assert (1, 82, 8) < tuple(map(int, low.split("."))) < tuple(map(int, high.split(".")))


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_make_targets_the_readme_names_are_there():
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "docs"} <= named <= targets
