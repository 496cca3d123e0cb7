"""Making a conversation smaller: layers that give up the least first, and what they did."""

from __future__ import annotations

from nexo_django.compaction.base import Applied, Compaction, Strategy
from nexo_django.compaction.change import Change, Spent
from nexo_django.compaction.pipeline import CompactionPipeline, Outcome, composed, ladder
from nexo_django.compaction.sliding_window import SlidingWindow
from nexo_django.compaction.summarize import Summarize, SummaryFailed
from nexo_django.compaction.tool_results import ToolResults

__all__ = [
    "Applied",
    "Change",
    "Compaction",
    "CompactionPipeline",
    "Outcome",
    "SlidingWindow",
    "Spent",
    "Strategy",
    "Summarize",
    "SummaryFailed",
    "ToolResults",
    "composed",
    "ladder",
]
