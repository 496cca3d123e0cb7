"""The sums of what model calls used, as columns of a chat and of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from nexo_django.messages import COUNTS, Usage
from nexo_django.models.compiled import Add, Inserted
from nexo_django.sanitize import clean_usage

MOST, MOST_SUM = 2**31 - 1, 2**63 - 1
COST_DIGITS, COST_PLACES = 20, 12
SMALLEST_COST = Decimal(1).scaleb(-COST_PLACES)
# A whole number: SQLite's are floats, and would round one that is all nines up.
MOST_COST = Decimal(10 ** (COST_DIGITS - COST_PLACES) - 1)


class UsageSums(Inserted):
    """Sums of usage.

    `cost` is in US dollars; NULL once the price of any part is unknown, and it stays so.
    """

    input_tokens = models.BigIntegerField(_("input tokens"), default=0)
    output_tokens = models.BigIntegerField(_("output tokens"), default=0)
    cached_tokens = models.BigIntegerField(_("cached tokens"), default=0)
    cache_write_tokens = models.BigIntegerField(_("cache write tokens"), default=0)
    reasoning_tokens = models.BigIntegerField(_("reasoning tokens"), default=0)
    cost = models.DecimalField(
        _("cost"),
        max_digits=COST_DIGITS,
        decimal_places=COST_PLACES,
        null=True,
        blank=True,
        default=Decimal(0),
    )

    class Meta:
        abstract = True

    @property
    def usage(self) -> Usage:
        """The sums as a value; without a model call its cost is not known, as ever."""
        counts = {name: getattr(self, f"{name}_tokens") for name in COUNTS}
        used = any(counts.values()) or self.cost
        return Usage(**counts, cost=self.cost if used else None)


def columns(usage: Usage) -> dict[str, Any]:
    """Give a usage as a message's columns; what is out of range is cut to it."""
    return _columns(clean_usage(usage), MOST)


def sums(usage: Usage) -> dict[str, Any]:
    """Give sums of usage as a turn's columns; what is out of range is cut to it."""
    return _columns(usage, MOST_SUM)


def _columns(usage: Usage, most: int) -> dict[str, Any]:
    counts = {f"{name}_tokens": min(getattr(usage, name), most) for name in COUNTS}
    cost = None if usage.cost is None else min(usage.cost, MOST_COST).quantize(SMALLEST_COST)
    return {**counts, "cost": cost}


def moves(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a message's usage columns add to the sums."""
    names = [f"{name}_tokens" for name in COUNTS]
    changes: dict[str, Any] = {n: Add(columns[n]) for n in names if columns[n]}
    if columns["cost"] is None:
        if columns["input_tokens"] or columns["output_tokens"]:
            changes["cost"] = None
    elif columns["cost"]:
        changes["cost"] = Add(columns["cost"])
    return changes
