"""How the documentation is built: `sphinx-build -W docs docs/_build/html`."""

from __future__ import annotations

import re
from pathlib import Path

project = "nexo_django"
author = "The nexo_django authors"
copyright = author  # noqa: A001
_source = (Path(__file__).parent.parent / "nexo_django/__init__.py").read_text()
release = version = re.search(r'__version__ = "(.+)"', _source)[1]

extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"nexo_django {release}"
html_static_path: list[str] = []
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
