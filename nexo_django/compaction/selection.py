"""What may be given up, oldest first: whole turns before the task, then steps of the task.

The system's text, the prompt of the task and earlier summaries are in no unit, so that they
stay whatever is dropped. Units end where steps do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nexo_django.compaction.base import Compaction
from nexo_django.messages import ASSISTANT, NOTICE, SUMMARY, Message
from nexo_django.transcript import is_prompt, last_prompt, system_end

NOTE_MARK = "sliding_window"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is kept and dropped, in order; notes are in neither."""

    kept: list[Message]
    dropped: list[Message]


def select(env: Compaction, keep_steps: int, room: int, *, merging: bool = False) -> Selection:
    """Choose the fewest oldest units to drop, so that the rest and `room` fit the target.

    The newest `keep_steps` steps of the task stay in any case. When the earlier summaries
    are about to be merged, they take no room of their own.
    """
    messages = env.conversation
    start, anchor = system_end(messages), last_prompt(messages)
    task = start if anchor is None else anchor + 1
    history = _units(messages, range(start, start if anchor is None else anchor), is_prompt)
    steps = _units(messages, range(task, len(messages)), _is_step)
    sizes = env.sizes(messages)
    units = {i for unit in (*history, *steps) for i in unit}
    notes = {i for i, message in enumerate(messages) if is_note(message)}
    free = {i for i, m in enumerate(messages) if merging and m.kind == SUMMARY} | notes | units
    spare = env.target - room - sum(size for i, size in enumerate(sizes) if i not in free)
    task_size = sum(sizes[i] for unit in steps for i in unit)
    if task_size > spare:
        kept = _newest(sizes, steps, spare, _guarded(messages, steps, keep_steps))
    else:
        kept = steps + _newest(sizes, history, spare - task_size, 0)
    gone = units - {i for unit in kept for i in unit}
    stay = [m for i, m in enumerate(messages) if i not in gone and i not in notes]
    return Selection(stay, [messages[i] for i in sorted(gone)])


def in_front(kept: Sequence[Message], new: Message) -> list[Message]:
    """Put a note or summary before everything but the system's text."""
    place = system_end(kept)
    return [*kept[:place], new, *kept[place:]]


def is_note(message: Message) -> bool:
    """Whether the message only says that something was dropped."""
    return message.kind == NOTICE and message.mark == NOTE_MARK


def _is_step(message: Message) -> bool:
    return message.role == ASSISTANT


def _units(
    messages: Sequence[Message], indexes: range, begins: Callable[[Message], bool]
) -> list[list[int]]:
    units: list[list[int]] = []
    for index in indexes:
        message = messages[index]
        if message.kind == SUMMARY or is_note(message):
            continue
        if not units or begins(message):
            units.append([])
        units[-1].append(index)
    return units


def _guarded(messages: Sequence[Message], steps: list[list[int]], keep_steps: int) -> int:
    """Count the newest units that hold `keep_steps` steps."""
    seen = 0
    for count, unit in enumerate(reversed(steps), start=1):
        seen += any(_is_step(messages[i]) for i in unit)
        if seen == keep_steps:
            return count
    return len(steps)


def _newest(sizes: list[int], units: list[list[int]], spare: int, least: int) -> list[list[int]]:
    kept: list[list[int]] = []
    for unit in reversed(units):
        spare -= sum(sizes[i] for i in unit)
        if spare < 0 and len(kept) >= least:
            break
        kept.append(unit)
    return kept[::-1]
