"""Talk to an agent in the terminal: the site's own sessions, for trying them and for support."""

from __future__ import annotations

import contextlib
import getpass
import signal
import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from nexo_django.events import DONE as DONE_EVENT
from nexo_django.exceptions import NexoError
from nexo_django.management.terminal import Terminal, shorten
from nexo_django.session import Session
from nexo_django.stores.base import CANCELLED, DONE

HELP = """\
/history  show the last messages
/approve ID, /deny ID [REASON], /answer ID TEXT  decide on a call that waits
/continue go on with a turn that waited or was interrupted
/help     show this
/exit     leave, as Ctrl-D does
Ctrl-C stops the turn that runs; the session keeps what was said."""
HISTORY = 50


class Command(BaseCommand):
    help = "Talk to an agent: nexo_chat AGENT INSTANCE continues that session, or begins it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("agent", help="The registered name of the agent.")
        parser.add_argument("instance", help="Which session of the agent, such as a user's id.")
        parser.add_argument("--prompt", help="Send this prompt, print the reply and leave.")
        parser.add_argument("--model", help="Ask this litellm model in place of the agent's.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run one turn, or turns until the input ends.

        Exit code 1 when the one turn, or the last of a script's, did not finish.
        """
        self.terminal = Terminal(self.stdout, self.style)
        overrides = {"model": options["model"]} if options["model"] else {}
        try:
            session = Session.resume(options["agent"], options["instance"], **overrides)
        except (NexoError, TypeError, ValueError) as error:
            raise CommandError(str(error)) from error
        with session:
            if options["prompt"] is not None:
                failure = self.turn(session, options["prompt"])
            else:
                failure = self.talk(session)
        if failure:
            raise CommandError(failure)

    def talk(self, session: Session) -> str:
        """Run turns until the input ends; give a script's last failure, "" for a person's."""
        asks = sys.stdin.isatty()
        if asks:
            # Arrow keys and the lines typed before, where the platform has them.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401
            self.terminal.note(f"{session.agent.name} · {session.agent.model_id} · /help")
        failure = ""
        for line in self.lines("> " if asks else ""):
            if line == "/exit":
                break
            if line == "/help":
                self.terminal.say(f"{HELP}\n")
            elif line == "/history":
                self.history(session)
            elif failure := self.obey(session, line):
                self.terminal.failure(failure)
        return "" if asks else failure

    def obey(self, session: Session, line: str) -> str:
        """Decide, go on, or run a turn; give what went wrong, "" when nothing did."""
        verb, _, rest = line.partition(" ")
        call_id, _, text = rest.strip().partition(" ")
        try:
            if verb in ("/approve", "/deny", "/answer"):
                decide(session, verb, call_id, text)
                return ""
            if line == "/continue":
                status = session.continue_turn(on_event=self.terminal.event).status
                return "" if status == DONE else f"The turn ended as {status}."
        except (NexoError, ValueError) as error:
            return str(error)
        finally:
            self.terminal.end_line()
        return self.turn(session, line)

    def lines(self, prompt: str) -> Iterator[str]:
        """Give what is typed, without empty lines, until Ctrl-D."""
        while True:
            try:
                line = input(prompt).strip()
            except EOFError:
                self.terminal.say("\n" if prompt else "")
                return
            except KeyboardInterrupt:
                self.terminal.say("\n")
                continue
            if line:
                yield line

    def turn(self, session: Session, prompt: str) -> str:
        """Run a turn, printing it as it happens; give what went wrong, "" when nothing did."""
        try:
            stream = session.stream(prompt)
        except (NexoError, ValueError) as error:
            return str(error)
        status = ""
        try:
            with stopping(session, self.terminal):
                for event in stream:
                    self.terminal.event(event.type, event.payload)
                    if event.type == DONE_EVENT:
                        status = event.payload["status"]
        except NexoError as error:
            return str(error)
        except KeyboardInterrupt:
            return "The turn was left; what it had said is stored."
        finally:
            self.terminal.end_line()
        if status == CANCELLED:
            return "Stopped; what was said is stored."
        return "" if status == DONE else f"The turn ended as {status}."

    def history(self, session: Session) -> None:
        """Print the last messages, one a line."""
        try:
            messages = deque(session.stored.history(), maxlen=HISTORY)
        except NexoError as error:
            self.terminal.failure(str(error))
            return
        for message in messages:
            self.terminal.message(message)
        if not messages:
            self.terminal.note(f"No messages yet for {shorten(session.instance_id)}.")


def decide(session: Session, verb: str, call_id: str, text: str) -> None:
    """Decide on a call that waits, as the user of the system."""
    try:
        by = getpass.getuser()
    except (OSError, KeyError, ImportError):
        by = ""
    if verb == "/approve":
        session.approve(call_id, by=by)
    elif verb == "/deny":
        session.deny(call_id, text, by=by)
    else:
        session.answer(call_id, text, by=by)


@contextlib.contextmanager
def stopping(session: Session, terminal: Terminal) -> Iterator[None]:
    """Let the first Ctrl-C cancel the turn that runs; a second one leaves it."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        terminal.note("Stopping; Ctrl-C again leaves at once.")
        session.cancel()

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:
        # Not the main thread (a test, a shell inside a server): there is no Ctrl-C to catch.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
