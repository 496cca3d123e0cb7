"""The layers of a turn; outermost first: SessionLog, SystemPrompt, ToolResultLoop, MaxIterations,
DefaultCompactionPipeline, DefaultToolPipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexo_django.middleware.loop import Loop, MaxIterations, ToolResultLoop
from nexo_django.middleware.session_log import SessionLog
from nexo_django.middleware.system_prompt import SystemPrompt
from nexo_django.middleware.tools import DefaultToolPipeline, ToolRun

if TYPE_CHECKING:
    from nexo_django.middleware.compaction import DefaultCompactionPipeline

__all__ = [
    "DefaultCompactionPipeline",
    "DefaultToolPipeline",
    "Loop",
    "MaxIterations",
    "SessionLog",
    "SystemPrompt",
    "ToolResultLoop",
    "ToolRun",
]


def __getattr__(name: str) -> Any:
    # A stack without compaction need not load what compaction needs.
    if name == "DefaultCompactionPipeline":
        from nexo_django.middleware.compaction import DefaultCompactionPipeline

        return DefaultCompactionPipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
