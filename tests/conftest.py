"""What every test shares."""

from __future__ import annotations

import os

# Set before anything can import it: the tests have no network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
