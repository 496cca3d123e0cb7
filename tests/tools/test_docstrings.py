"""Docstrings in the usual styles."""

from __future__ import annotations

import pytest

from nexo_django.tools.docstrings import parse

GOOGLE = """Find rooms.

    In a city.

    Args:
        city (str): Where to
            look.
        days: How long.
            Note: at least one.

    Returns:
        Rooms.
    """
NUMPY = """
    Find rooms.

    In a city.

    Parameters
    ----------
    city : str
        Where to
        look.
    days
        How long.
        Note: at least one.

    Returns
    -------
    list
        Rooms.
    """
SPHINX = """Find rooms.

    In a city.

    :param str city: Where to
        look.
    :type city: str
    :param days: How long.
        Note: at least one.
    :returns: Rooms.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_styles(docstring: str) -> None:
    assert parse(docstring) == (
        "Find rooms.\n\nIn a city.",
        {"city": "Where to look.", "days": "How long. Note: at least one."},
    )


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        (None, ""),
        ("", ""),
        ("One line.", "One line."),
        ("Notes\nare kept when they head nothing.", "Notes\nare kept when they head nothing."),
        ("Example: this is a sentence.", "Example: this is a sentence."),
        ("Do.\n\nReturns:\n    nothing", "Do."),
    ],
)
def test_descriptions(docstring: str | None, description: str) -> None:
    assert parse(docstring) == (description, {})
