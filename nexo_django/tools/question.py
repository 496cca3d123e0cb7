"""The tool that asks the user: the turn stops until somebody answers."""

from __future__ import annotations

from nexo_django.exceptions import ToolError
from nexo_django.tools.base import Tool


class Question(Tool):
    """The tool whose calls are answered by the user, and never run."""

    name = "question"
    asks_user = True

    def execute(self, text: str, options: list[str] | None = None) -> str:
        """Ask the user a question and wait for the answer, when you can't go on without it.

        Args:
            text: The question.
            options: Answers to choose from; the user may still answer something else.
        """
        raise ToolError("Nobody can answer a question here.")


question = Question()
