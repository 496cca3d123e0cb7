"""Every store: each must keep calls that wait in the same way."""

from __future__ import annotations

import pytest

from nexo_django.stores.memory import MemoryStore
from tests.approvals.support import ran


@pytest.fixture(params=["database", "memory", "jsonl"])
def store(request, settings, tmp_path):
    """Run the test on each store."""
    ran.clear()
    MemoryStore.reset()
    name = request.param
    settings.NEXO = {"SESSION_STORE": f"jsonl:{tmp_path}" if name == "jsonl" else name}
    yield name
    MemoryStore.reset()
