"""Runs the small versions of the experiments, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Experiment = Callable[..., str]


def database_url() -> str:
    """Give the server that the tests run on, "" for the default, a SQLite file."""
    return os.environ.get("DATABASE_URL", "")


@pytest.fixture
def experiment() -> Experiment:
    """Run a module's experiment on the database that DATABASE_URL names; give what it printed."""

    def run(module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", f"tests.durability.{module}", *arguments]
        if url := database_url():
            command += ["--database", url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
        output = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, output
        return output

    return run
