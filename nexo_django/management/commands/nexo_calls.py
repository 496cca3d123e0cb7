"""List the tool calls that wait for somebody, and decide on them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from nexo_django import conf, deciding
from nexo_django.decisions import ANSWERED, APPROVED, AWAITING, DENIED, PendingCall
from nexo_django.exceptions import NexoError
from nexo_django.management.terminal import clean, shorten
from nexo_django.models import tables
from nexo_django.stores.base import StoredChat
from nexo_django.stores.choice import default_store
from nexo_django.stores.database import DatabaseStore

VERBS = {"approve": APPROVED, "deny": DENIED, "answer": ANSWERED}
LISTED = 1000


class Command(BaseCommand):
    help = (
        "List the calls that wait for an approval or an answer, and decide on one. "
        "The turn goes on when its session is continued."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        listing = verbs.add_parser("list", help="List the calls that wait.")
        listing.add_argument("agent", nargs="?", help="Only this agent's.")
        listing.add_argument("instance", nargs="?", help="Only this session's.")
        for name, does in (
            ("approve", "Let a call run."),
            ("deny", "Keep a call from running."),
            ("answer", "Answer a question."),
        ):
            verb = verbs.add_parser(name, help=does)
            verb.add_argument("agent", help="The registered name of the agent.")
            verb.add_argument("instance", help="Which session of the agent.")
            verb.add_argument("call", help="The id of the call, as `list` prints it.")
            verb.add_argument("--by", default="", help="Who decides.")
            if name == "deny":
                verb.add_argument("--reason", default="", help="What the model is told.")
            if name == "answer":
                verb.add_argument("text", help="The answer.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it; exit code 1 with the reason when it can't be done."""
        try:
            conf.check()
            if options["verb"] == "list":
                self.list(options["agent"], options["instance"])
            else:
                self.decide(options)
        except (NexoError, ValueError) as error:
            raise CommandError(clean(str(error))) from error

    def list(self, agent: str | None, instance: str | None) -> None:
        """Print the calls that wait, a line each."""
        if agent is not None and instance is not None:
            chats: Iterable[tuple[str, str]] = [(agent, instance)]
        else:
            chats = self.chats(agent)
        found = 0
        for pair in chats:
            for call in self.stored(*pair).pending():
                found += 1
                self.stdout.write(line(pair, call))
        self.stdout.write(f"{found} calls wait.")

    def decide(self, options: dict[str, Any]) -> None:
        """Record one decision."""
        agent, instance, call_id = options["agent"], options["instance"], options["call"]
        text = options.get("reason") or options.get("text") or ""
        made = deciding.decision(VERBS[options["verb"]], options["by"], text)
        call = deciding.decide(self.stored(agent, instance), agent, instance, call_id, made)
        self.stdout.write(f"{shorten(call.name)} {shorten(call.id)} was {made.verb}.")

    def stored(self, agent: str, instance: str) -> StoredChat:
        """Give the handle of a chat."""
        return default_store().chat(agent, instance)

    def chats(self, agent: str | None) -> Iterable[tuple[str, str]]:
        """Give the chats in which calls wait."""
        if not isinstance(default_store(), DatabaseStore):
            raise CommandError("Without a database the list needs an agent and an instance.")
        calls = tables().tool_call._default_manager.filter(status__in=AWAITING)
        if agent is not None:
            calls = calls.filter(message__chat__agent_name=agent)
        pairs = calls.order_by("message__chat").distinct()
        names = ("message__chat__agent_name", "message__chat__instance_id")
        return list(pairs.values_list(*names)[:LISTED])


def line(pair: tuple[str, str], call: PendingCall) -> str:
    """Give a call as one clean line."""
    asked = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    agent, instance = map(shorten, pair)
    return (
        f"{agent} {instance} {shorten(call.id)} {call.kind} {shorten(call.name)}({shorten(asked)})"
    )
