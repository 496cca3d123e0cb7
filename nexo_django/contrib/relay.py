"""A turn of this process, told to those who watch it, in this process or in others."""

from __future__ import annotations

from typing import Any

from nexo_django.connections import in_test_transaction
from nexo_django.contrib.drafts import Keeper
from nexo_django.contrib.live import Publisher
from nexo_django.stores.database_turn import DatabaseTurn


class Relay:
    """The `begun` and the `on_event` of one turn; what other stores keep nobody can watch."""

    def __init__(self) -> None:
        self.publisher: Publisher | None = None
        self.keeper: Keeper | None = None

    def begin(self, turn: Any) -> None:
        """Take the turn's topic, once its prompt is stored."""
        if not isinstance(turn, DatabaseTurn) or turn.lease is None:
            return
        key = (turn.alias, turn.row.chat_id)
        self.keeper = None if in_test_transaction() else Keeper(key)
        self.publisher = Publisher(key, turn.next_position, self.keeper)

    def __call__(self, type: str, payload: dict[str, Any]) -> None:
        """Tell an event."""
        if self.publisher is not None:
            self.publisher(type, payload)

    def close(self) -> None:
        """Tell that the turn has ended."""
        if self.publisher is not None:
            self.publisher.close()
        if self.keeper is not None:
            self.keeper.close()
