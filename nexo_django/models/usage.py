"""The sums of what model calls used, as columns of a chat and of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from nexo_django.messages import COUNTS, Usage
from nexo_django.models.compiled import Add

MOST = 2**31 - 1
COST_DIGITS, COST_PLACES = 20, 12


class UsageSums(models.Model):
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
    counts = {f"{name}_tokens": min(max(getattr(usage, name), 0), MOST) for name in COUNTS}
    cost = usage.cost
    # The column holds that much; a larger cost of one call is not a price.
    if cost is None or not cost.is_finite() or abs(cost) >= 10 ** (COST_DIGITS - COST_PLACES):
        return {**counts, "cost": None}
    return {**counts, "cost": cost.quantize(Decimal(1).scaleb(-COST_PLACES))}


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
