"""What a store without a database gives to the owner of a chat's lease."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from nexo_django.messages import Message
from nexo_django.stores.attached import Attached
from nexo_django.stores.contents import Contents, Turn
from nexo_django.stores.files import FileStore
from nexo_django.stores.local_decisions import Decisions, Wait
from nexo_django.stores.outputs import Outputs
from nexo_django.stores.parts import Part


class Held(Protocol):
    """A chat whose lease is held: its contents, and where more is written.

    Each write is committed when the method returns, and leaves `contents` alone.
    """

    contents: Contents

    @property
    def decisions(self) -> Decisions:
        """What was decided on the chat's calls."""

    @property
    def outputs(self) -> Outputs:
        """Where whole outputs of tools are kept."""

    @property
    def attached(self) -> Attached:
        """Where attached files are kept."""

    @property
    def files(self) -> FileStore:
        """Where the chat's files are kept."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """What a change of the contents is made under; re-entrant."""

    def owned(self) -> bool:
        """Whether the lease is still held."""

    def begin(self, turn: Turn, prompts: list[Message]) -> None:
        """Write a new turn and its prompt, both or neither."""

    def message(self, message: Message) -> None:
        """Write a message."""

    def turn(self, turn: Turn) -> None:
        """Write a turn's status and outcome."""

    def started(self, turn: Turn, call: tuple[str, int]) -> None:
        """Write that a call starts to run."""

    def cancelled(self, number: int) -> bool:
        """Whether that turn was asked to stop."""

    @property
    def made(self) -> int:
        """How many of the messages a compaction left, or its undoing brought back."""

    @property
    def index(self) -> int:
        """Which of the parts the contents are of."""

    def parts(self) -> list[Part]:
        """Give all that was kept, by compactions."""

    def replace(
        self, part: Part, marks: set[tuple[str, int]], waits: dict[tuple[str, int], Wait]
    ) -> None:
        """Begin a part, which is its `made` messages so far; the one before is kept.

        `marks` take the place of those of the last turn's calls that began to run, `waits` of
        what tells of those that were asked about.
        """

    def release(self) -> None:
        """Give the lease back; may be called twice and never raises."""
