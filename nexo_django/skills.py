"""Skills: folders of instructions that a model reads when it needs them.

A skill is `<SKILLS_PATH>/<name>/SKILL.md`, text after YAML front matter with `name` and
`description`. The prompt lists what an agent's skills are for; the tool `skill` gives their
text, and the files beside it. A file is read again only when it changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

from nexo_django import conf
from nexo_django.exceptions import ConfigurationError, ToolError, brief
from nexo_django.pipeline import Env
from nexo_django.sanitize import clean_text
from nexo_django.tools import Tool, tool

if TYPE_CHECKING:
    from nexo_django.agent import Agent

FILE = "SKILL.md"
MAX_FILE = 256 * 1024
MAX_RESOURCE = 1024 * 1024
MAX_DESCRIPTION = 1024
# Beyond these a listing would cost more than it tells.
MAX_RESOURCES, MAX_DEPTH = 200, 5
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
INTRODUCTION = (
    "You have skills: instructions for certain tasks. Before you do what one is for, read it "
    "with the tool skill(name). The skills are:"
)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as its SKILL.md says it is."""

    name: str
    description: str
    body: str
    folder: Path
    compatibility: str = ""

    @property
    def resources(self) -> list[tuple[str, int]]:
        """The files beside SKILL.md, by path, with their sizes; one more than are listed."""
        top = os.path.realpath(self.folder)
        found = (file for file in _files(Path(top), top) if file[0] != FILE)
        return list(islice(found, MAX_RESOURCES + 1))

    def resource(self, name: str) -> bytes:
        """Read a file of the skill, or raise ToolError for what is none."""
        return _read(self.folder, name)


def roots() -> list[Path]:
    """Give the folders of NEXO["SKILLS_PATH"]; relative ones are below BASE_DIR."""
    given = conf.get("SKILLS_PATH")
    listed = [given] if isinstance(given, str | Path) else list(given or ())
    base = getattr(settings, "BASE_DIR", None) if conf.configured() else None
    return [Path(base or ".") / Path(path).expanduser() for path in listed]


def load(name: Any) -> Skill:
    """Give a skill by its name; the first folder that has it counts.

    Raises ConfigurationError, naming the path, for one that is missing or invalid.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{brief(name)} is no skill's name: it has 1 to 64 small letters, digits and -, and "
            f"is the name of the skill's folder."
        )
    places = roots()
    for root in places:
        path = root / name / FILE
        if (state := _state(path)) is not None:
            return _loaded(path, state)
    if not places:
        raise ConfigurationError(
            f'There is no skill {name!r}: set NEXO["SKILLS_PATH"] to the folder that has it.'
        )
    near = get_close_matches(name, available(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    paths = ", ".join(str(root / name / FILE) for root in places)
    raise ConfigurationError(f"There is no skill {name!r}: no {paths}.{hint}")


def available() -> list[str]:
    """Give the names of all folders that have a SKILL.md, valid or not."""
    found: set[str] = set()
    for root in roots():
        if root.is_dir():
            found.update(entry.name for entry in root.iterdir() if (entry / FILE).is_file())
    return sorted(found)


def problems() -> Iterator[str]:
    """Say what is wrong with the folders of SKILLS_PATH, whoever uses their skills."""
    for root in roots():
        if not root.is_dir():
            yield f'NEXO["SKILLS_PATH"] names {root}, which is no folder.'
            continue
        for entry in sorted(root.iterdir()):
            path = entry / FILE
            if (state := _state(path)) is not None:
                try:
                    _loaded(path, state)
                except ConfigurationError as error:
                    yield str(error)


def check(agent: str, names: Any) -> None:
    """Raise ConfigurationError for skills of an agent that can't be used."""
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise ConfigurationError(f"{agent}.skills is {brief(names)}; give a list of names.")
    for name in names:
        try:
            load(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{agent}.skills: {error}") from None


def prompted(text: str, names: Sequence[str]) -> str:
    """Give an agent's system text with the list of its skills after it."""
    if not names:
        return text
    found = [load(name) for name in dict.fromkeys(names)]
    listed = "\n".join([INTRODUCTION, *(f"- {it.name}: {it.description}" for it in found)])
    return f"{text}\n\n{listed}" if text.strip() else listed


def tools(agent: Agent) -> list[Tool]:
    """Give the tool that reads skills."""
    return [skill]


@tool(idempotent=True)
def skill(env: Env, name: str, resource: str | None = None) -> str:
    """Read a skill's instructions, or one of the files that belong to it.

    Args:
        name: The name of the skill.
        resource: The path of one of its files, as the skill's text or its list says it.
    """
    names = list(getattr(env.agent, "skills", None) or ())
    if name not in names:
        there = ", ".join(names) or "none"
        raise ToolError(f"There is no skill {brief(name)}. The skills are: {there}.")
    try:
        found = load(name)
    except ConfigurationError:
        # The path that it names is nothing for a model.
        raise ToolError(f"The skill {name!r} can't be read at present.") from None
    return _told(found) if not resource else _resource_text(found, resource)


def _told(found: Skill) -> str:
    parts = [found.body or "(The skill has no text.)"]
    if found.compatibility:
        parts.append(f"Compatibility: {found.compatibility}")
    listed = found.resources
    if listed:
        lines = [f"- {name} ({size} bytes)" for name, size in listed[:MAX_RESOURCES]]
        if len(listed) > MAX_RESOURCES:
            lines.append("- and more, which are not listed")
        title = f"Files of this skill; read one with skill(name={found.name!r}, resource=path):"
        parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts)


def _resource_text(found: Skill, name: str) -> str:
    data = found.resource(name)
    try:
        return clean_text(data.decode())
    except UnicodeDecodeError:
        return f"({name}: {len(data)} bytes that are not text)"


def _state(path: Path) -> tuple[int, int, int] | None:
    """Tell a file's version, or None where there is no plain file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=256)
def _loaded(path: Path, state: tuple[int, int, int]) -> Skill:
    """Parse a SKILL.md; the second argument makes a changed file a new one to the cache."""
    if state[1] > MAX_FILE:
        raise ConfigurationError(f"The skill {path} has {state[1]} bytes; {MAX_FILE} are allowed.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The skill {path} can't be read: {error}") from None
    front, body = _split(path, text)
    name, description = (_field(path, front, key) for key in ("name", "description"))
    if name != path.parent.name:
        raise ConfigurationError(
            f"The skill {path} is named {brief(name)}; it must be named as its folder, "
            f"{path.parent.name!r}."
        )
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"The skill {path} is named {brief(name)}; it must be 1 to 64 small letters, digits "
            f"and -."
        )
    if len(description) > MAX_DESCRIPTION:
        raise ConfigurationError(
            f"The skill {path} has a description of {len(description)} characters; "
            f"{MAX_DESCRIPTION} are allowed."
        )
    fits = front.get("compatibility")
    compatibility = "" if fits is None else " ".join(clean_text(str(fits)).split())
    return Skill(name, description, clean_text(body.strip()), path.parent, compatibility)


def _split(path: Path, text: str) -> tuple[dict[str, Any], str]:
    """Split a file into its front matter and what follows it."""
    import yaml

    found = re.match(r"---[ \t]*\n(.*?\n)?---[ \t]*(?:\n|$)", text.replace("\r\n", "\n"), re.DOTALL)
    if found is None:
        raise ConfigurationError(
            f"The skill {path} has no front matter; begin it with a line ---, name: and "
            f"description:, and another line ---."
        )
    try:
        front = yaml.safe_load(found[1] or "")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f" in line {where.line + 2}"
        raise ConfigurationError(f"The skill {path} has no valid YAML{line}.") from None
    if not isinstance(front, dict):
        raise ConfigurationError(f"The skill {path} has no name and description.")
    return front, text.replace("\r\n", "\n")[found.end() :]


def _field(path: Path, front: dict[str, Any], key: str) -> str:
    value = front.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(
            f"The skill {path} has {brief(value)} as its {key}; it must be text."
        )
    return " ".join(clean_text(value).split())


def _files(folder: Path, top: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Walk plain files that are inside, hidden ones and links to elsewhere left out."""
    if depth > MAX_DEPTH:
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), top, depth + 1)
            elif entry.is_file() and _inside(os.path.realpath(entry.path), top):
                yield os.path.relpath(entry.path, top), entry.stat().st_size


def _inside(real: str, top: str) -> bool:
    return real.startswith(top.rstrip(os.sep) + os.sep)


def _read(folder: Path, name: str) -> bytes:
    top = os.path.realpath(folder)
    wrong = ToolError(f"The skill has no file {brief(name)}; skill(name) lists its files.")
    # Hidden files are not listed either, and ".." is none of the folder's.
    if "\x00" in name or os.path.isabs(name) or any(p[0] == "." for p in Path(name).parts):
        raise wrong
    try:
        real = os.path.realpath(os.path.join(top, name))
        if not _inside(real, top):
            raise wrong
        # Not blocking: a pipe that nobody writes to would hold the turn.
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise wrong from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise wrong
        with open(handle, "rb", closefd=False) as file:
            data = file.read(MAX_RESOURCE + 1)
    finally:
        os.close(handle)
    if len(data) > MAX_RESOURCE:
        raise ToolError(f"{name} is larger than {MAX_RESOURCE} bytes and can't be read.")
    return data
