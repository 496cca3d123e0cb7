"""What a prompt returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nexo_django.decisions import PendingCall
from nexo_django.messages import Message, Usage
from nexo_django.stores.base import DONE


@dataclass(frozen=True)
class Reply:
    """How a turn ended.

    `status` is done, awaiting_approval, awaiting_answer, turn_limit or cancelled; `message`
    is the model's last message in the turn, None when it wrote none; `pending` are the calls
    that wait for a decision; `usage` is the turn's. `output` is the answer as a value of the
    type that the prompt asked for, None where it asked for none or the turn is not done.
    """

    message: Message | None = None
    status: str = DONE
    usage: Usage = field(default_factory=Usage)
    pending: tuple[PendingCall, ...] = ()
    turn: int | None = None
    output: Any = None

    @property
    def content(self) -> str:
        """The model's text, "" when there is none."""
        return (self.message.content or "") if self.message is not None else ""

    def __str__(self) -> str:
        return self.content
