"""Check that every stored chat could be sent to a provider; the net below the turns' own care."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections, router

from nexo_django.exceptions import StoreFailed
from nexo_django.management.checking import mend, problem
from nexo_django.management.terminal import shorten
from nexo_django.models import tables

TOLD_EVERY = 2.0
VALID, REPAIRED, BROKEN, SKIPPED = "valid", "repaired", "with problems", "skipped (a turn runs)"


class Command(BaseCommand):
    help = "Check that the history of every stored chat is one that a provider accepts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="Store what is missing.")
        parser.add_argument(
            "--dry-run", action="store_true", help="With --repair: only say what it would repair."
        )
        parser.add_argument("--agent", help="Only the chats of this agent.")
        parser.add_argument("--instance", help="Only the chats of this instance.")
        parser.add_argument("--batch-size", type=int, default=100, help="Chats a query.")
        parser.add_argument("--database", choices=tuple(connections), help="The database.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the chats, print the problems and the counts; exit code 1 when some remain."""
        if options["batch_size"] < 1:
            raise CommandError("--batch-size is at least 1.")
        if options["dry_run"] and not options["repair"]:
            raise CommandError("--dry-run goes with --repair; without it nothing is written.")
        self.alias = options["database"] or router.db_for_write(tables().chat) or DEFAULT_DB_ALIAS
        self.repair, self.dry_run = options["repair"], options["dry_run"]
        self.counts: Counter[str] = Counter()
        progress = Progress(self, options["verbosity"])
        for chat in self.chats(options):
            self.counts[self.outcome(chat)] += 1
            progress.tell(self.counts.total())
        names = (VALID, REPAIRED, BROKEN, SKIPPED)
        counts = ", ".join(f"{self.counts[name]} {name}" for name in names)
        self.stdout.write(f"{self.counts.total()} chats: {counts}.")
        if self.counts[BROKEN]:
            raise CommandError(f"{self.counts[BROKEN]} chats have problems; see above.")

    def chats(self, options: dict[str, Any]) -> Iterator[Any]:
        """Give the chats by their keys, a batch a query, so that no cursor stays open."""
        asked = {"agent_name": options["agent"], "instance_id": options["instance"]}
        wanted = {name: value for name, value in asked.items() if value is not None}
        rows = left = self.rows().filter(**wanted).order_by("pk")
        while batch := list(left[: options["batch_size"]]):
            yield from batch
            left = rows.filter(pk__gt=batch[-1].pk)

    def rows(self) -> Any:
        """Give the chats with what a check needs of them."""
        return tables().chat.objects.using(self.alias).select_related("current_compaction")

    def outcome(self, chat: Any) -> str:
        """Check a chat, and repair it if that was asked for."""
        if self.runs(chat):
            return SKIPPED
        if not problem(chat, self.alias):
            return VALID
        # A turn may have begun since the batch was read; what is found now is sure.
        again = self.rows().filter(pk=chat.pk).first()
        found = again and problem(again, self.alias)
        if not found:
            return VALID
        if self.runs(again):
            return SKIPPED
        if self.repair and not self.dry_run:
            found = self.mended(again, found)
            if found is None:
                self.say(chat, "repaired.")
                return REPAIRED
        self.say(chat, f"{found}.")
        return BROKEN

    def mended(self, chat: Any, found: str) -> str | None:
        """Repair a chat and give what is still wrong with it."""
        try:
            if not mend(chat, self.alias):
                return found
        except StoreFailed as error:
            return f"{found}; {error}"
        return problem(self.rows().get(pk=chat.pk), self.alias)

    def runs(self, chat: Any) -> bool:
        """Whether a turn of the chat runs, by the database's clock."""
        return bool(self.rows().leased().filter(pk=chat.pk).exists())

    def say(self, chat: Any, text: str) -> None:
        """Print a line about a chat."""
        self.stdout.write(f"{shorten(str(chat))}: {text}")


class Progress:
    """How far a command is, now and then, on standard error."""

    def __init__(self, command: BaseCommand, verbosity: int) -> None:
        self.command, self.quiet = command, verbosity < 1
        self.told = time.monotonic()

    def tell(self, done: int) -> None:
        """Say how many chats are done, unless it was said just now."""
        if self.quiet or time.monotonic() - self.told < TOLD_EVERY:
            return
        self.told = time.monotonic()
        self.command.stderr.write(f"{done} chats…", self.command.style.NOTICE)
