"""The wheel and the source archive hold what they must and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]))
print(build_sdist(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both, without an index, and give their paths."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [folder / name for name in done.stdout.split()[-2:]]


def tracked(folder):
    """Give the package's files, as a checkout has them."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_is_the_package_whole(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {n for n in wheel.namelist() if ".dist-info/" not in n}
        info = {n.partition(".dist-info/")[2] for n in wheel.namelist()} - {""}
    assert names == tracked("nexo_django")
    assert {"nexo_django/py.typed", "nexo_django/migrations/0001_initial.py"} <= names
    assert "licenses/LICENSE" in info


def test_the_source_archive_can_be_tested_from(built):
    with tarfile.open(built[1]) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    wanted = {"README.md", "LICENSE", "manage.py", "requirements.txt", "project/settings.py"}
    assert {*wanted, "tests/test_packaging.py", "docs/index.md"} <= names
    assert not [n for n in names if ".sqlite3" in n or "node_modules" in n or ".venv" in n]


def test_the_wheel_works_alone(built, tmp_path):
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path)
    code = (
        "import nexo_django, os; from django.conf import settings; import django\n"
        "assert os.path.dirname(os.path.dirname(nexo_django.__file__)) == os.environ['PYTHONPATH']\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.auth', 'django.contrib.contenttypes',"
        " 'nexo_django'], DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3',"
        " 'NAME': 'own.sqlite3', 'OPTIONS': {'transaction_mode': 'IMMEDIATE'}}})\n"
        "django.setup()\n"
        "from django.core.management import call_command\n"
        "call_command('migrate', verbosity=0); call_command('check')\n"
        "from nexo_django import Agent, Session\n"
        "class Assistant(Agent): pass\n"
        "Session.resume(Assistant, 1).prompt('My name is Mac.')\n"
        "assert 'Mac' in Session.resume(Assistant, 1).prompt('What is my name?').content\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
