"""How long the property tests run: briefly in the suite, `NEXO_FUZZ=10000` for a long run."""

from __future__ import annotations

import os


def examples(few: int) -> int:
    """Give the number of examples of a property: `few`, or what NEXO_FUZZ says."""
    return int(os.environ.get("NEXO_FUZZ") or few)
