"""The tools that keep a list of what is to be done, with the chat and apart from its messages."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nexo_django.exceptions import ToolError
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_text
from nexo_django.tools.base import tool

# Below .nexo/, which no sandbox shows.
PATH = ".nexo/todo.json"
MAX_TODOS = 100
MAX_CONTENT = 1000
SIGNS = {"pending": "[ ]", "in_progress": "[~]", "completed": "[x]"}


class Todo(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    content: Annotated[str, Field(min_length=1, max_length=MAX_CONTENT)]
    status: Literal["pending", "in_progress", "completed"] = "pending"


_Todos = TypeAdapter(list[Todo])


@tool(idempotent=True)
def todo_write(env: Env, todos: Annotated[list[Todo], Field(max_length=MAX_TODOS)]) -> str:
    """Keep the list of what is to be done in this conversation, in place of the one before. Use
    it for work of several steps, and write it again whenever something is begun or done.

    Args:
        todos: The whole list, in the order in which things are to be done; empty to delete it.
    """
    files = _files(env)
    if todos:
        plain = [{"content": clean_text(it.content), "status": it.status} for it in todos]
        files.write(PATH, json.dumps(plain, ensure_ascii=False).encode())
    else:
        files.remove(PATH)
    return _shown(todos)


@tool(idempotent=True)
def todo_read(env: Env) -> str:
    """Read the list of what is to be done, as todo_write kept it last."""
    data = _files(env).read(PATH)
    try:
        return _shown(_Todos.validate_json(data) if data else [])
    except ValidationError:
        raise ToolError("The list can't be read; write it again with todo_write.") from None


def _files(env: Env) -> Any:
    files = getattr(env.turn, "files", None)
    if files is None:
        raise ToolError("No list can be kept here: the pipeline keeps no session.")
    return files


def _shown(todos: list[Todo]) -> str:
    if not todos:
        return "There is nothing on the list."
    done = sum(it.status == "completed" for it in todos)
    lines = [f"{SIGNS[it.status]} {it.content}" for it in todos]
    return "\n".join([*lines, f"({done} of {len(todos)} completed)"])
