"""How stored values are shown: escaped, capped, and saying so where they were capped."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

# Characters of one text in a list, in a conversation, and on a message's own page.
PREVIEW, ENTRY, WHOLE = 60, 10_000, 200_000
# Characters of a name in a column; a hash or a UUID is shown whole.
COLUMN = 40
EMPTY = "-"


def preview(text: str | None) -> str:
    """Give the beginning of a text on one line."""
    return Truncator(" ".join((text or "").split())).chars(PREVIEW) or EMPTY


def short(name: str) -> str:
    """Give a name that fits a column of a list."""
    return Truncator(name).chars(COLUMN)


def money(cost: Decimal | None) -> str:
    """Give a cost in US dollars; unknown is not nothing."""
    return EMPTY if cost is None else f"${cost:,.4f}"


def pretty(value: Any) -> str:
    """Give a JSON value as indented text, "" for nothing."""
    if value in (None, {}, []):
        return ""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def note(shown: int, length: int) -> str:
    """Say what is not shown of a text of that length, "" when all of it is."""
    if length <= shown:
        return ""
    return _("%(more)s more characters are stored; they are not shown here.") % {
        "more": f"{length - shown:,}"
    }


def block(text: str | None, length: int | None = None, limit: int = WHOLE) -> SafeString | str:
    """Give a text as a preformatted block, capped at `limit` characters.

    `length` is the whole text's where `text` is only its beginning.
    """
    if not text:
        return EMPTY
    shown = text[:limit]
    return format_html(
        '<pre class="nexo-text" dir="auto">{}</pre><p class="help">{}</p>',
        shown,
        note(len(shown), length if length is not None else len(text)),
    )
