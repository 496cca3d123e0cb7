"""The tool that asks the user: the turn stops until somebody answers."""

from __future__ import annotations

from nexo_django.exceptions import ToolError
from nexo_django.tools.base import Tool


class Question(Tool):
    """Ask the user a question and wait for the answer, when you can't go on without it.

    Args:
        text: The question.
        options: Answers to choose from; the user may still answer something else.
    """

    name = "question"
    asks_user = True

    def execute(self, text: str, options: list[str] | None = None) -> str:
        """Refuse: a call of it is answered by the user and never runs."""
        raise ToolError("Nobody can answer a question here.")


question = Question()
