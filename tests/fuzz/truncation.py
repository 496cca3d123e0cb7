"""How long truncation and paging take on 10 MB of anything: `python -m tests.fuzz.truncation`."""

from __future__ import annotations

import base64
import random
import time
from typing import Any

from nexo_django.truncation import count_lines, page, truncate

SIZE = 10_000_000


def inputs() -> dict[str, Any]:
    """Give about ten megabytes of what a tool may print."""
    noise = random.Random(1).randbytes(SIZE)
    return {
        "one line": "x" * SIZE,
        "newlines": "\n" * SIZE,
        "short lines": "ab\n" * (SIZE // 3),
        "lines at the cap": ("y" * 1999 + "\n") * (SIZE // 2000),
        "lines over the cap": ("y" * 2001 + "\n") * (SIZE // 2002),
        "emoji": "😀" * (SIZE // 4),
        "combining marks": "\u0301" * (SIZE // 2),
        "joiners": "\u200d" * (SIZE // 3),
        "base64": base64.b64encode(noise).decode(),
        "binary": noise,
        "NUL": "\0" * SIZE,
        "a list": list(range(1_000_000)),
    }


def main() -> None:
    """Print the seconds of each."""
    print(f"{'':20} {'head':>7} {'tail':>7} {'end':>7} {'grep':>7}")
    for name, value in inputs().items():
        text = value if isinstance(value, str) else None
        runs = [
            lambda value=value: truncate(value, output_id="a"),
            lambda value=value: truncate(value, mode="tail", output_id="a"),
        ]
        if text is not None:
            runs.append(lambda text=text: page(text, count_lines(text) - 1))
            runs.append(lambda text=text: page(text, grep="not there"))
        print(f"{name:20}", *(f"{seconds(run):6.2f}s" for run in runs))


def seconds(run: Any) -> float:
    """Measure one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
