"""From a turn that runs in this process to those who watch it, here and elsewhere."""

from __future__ import annotations

from typing import Any

from nexo_django.connections import in_test_transaction
from nexo_django.contrib.drafts import Keeper
from nexo_django.contrib.live import Publisher


class Relay:
    """The `begun` and the `on_event` of a turn, which is run with both and then closed.

    What a turn stores is seen without it; it adds the text that is being written. A turn
    outside the database has no watchers, and nothing is told.
    """

    def __init__(self) -> None:
        self.publisher: Publisher | None = None
        self.keeper: Keeper | None = None

    def begin(self, turn: Any) -> None:
        """Open the turn's chat for watchers; one that was finished before has none to come."""
        if getattr(turn, "alias", None) is None or turn.lease is None:
            return
        key = (turn.alias, turn.row.chat_id)
        # Inside a test's transaction there are no others.
        self.keeper = None if in_test_transaction() else Keeper(key)
        self.publisher = Publisher(key, turn.next_position, self.keeper)

    def __call__(self, type: str, payload: dict[str, Any]) -> None:
        """Hand an event on."""
        if self.publisher is not None:
            self.publisher(type, payload)

    def close(self) -> None:
        """Tell that the turn has ended; may be called twice."""
        publisher, self.publisher = self.publisher, None
        keeper, self.keeper = self.keeper, None
        if publisher is not None:
            publisher.close()
        if keeper is not None:
            keeper.close()
