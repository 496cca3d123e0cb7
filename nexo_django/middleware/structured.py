"""Holding an answer to the type that its prompt asks for."""

from __future__ import annotations

import copy

from nexo_django import events
from nexo_django.exceptions import brief
from nexo_django.messages import ASSISTANT, COMPLETE, Message
from nexo_django.middleware.loop import Loop
from nexo_django.pipeline import App, Env, Layer, Pipeline
from nexo_django.structured import Output, Unfit, repair, repairs

# How often the model is told what is wrong in one turn.
ROUNDS = 1


class StructuredOutput:
    """Check the turn's answer, and have the model correct it once.

    Each answer is stored, and so is what the model is told, as a notice. Whether the last
    answer fits is for the caller to see. It stands outside the loop: a correction may call
    tools too.
    """

    def __init__(self, app: App, output: Output) -> None:
        if not isinstance(output, Output):
            raise TypeError(f"StructuredOutput takes an Output, not {brief(output)}.")
        self.app = app
        self.output = output

    def __call__(self, env: Env) -> None:
        self.app(env)
        while (unfit := self._check(env)) and repairs(env.messages) < ROUNDS:
            env.checkpoint(now=True)
            told = {"attempt": 1, "wait": 0, "error": "OutputInvalid"}
            env.emit(events.RETRY, told)
            env.messages.append(repair(self.output, unfit))
            env.current_iteration += 1
            self.app(env)

    def _check(self, env: Env) -> Unfit | None:
        answer = env.reply
        if env.should_exit or answer is None or not _is_final(answer):
            return None
        try:
            self.output.parse(answer.content or "")
        except Unfit as unfit:
            return unfit
        return None


def holding(pipeline: Pipeline, output: Output) -> Pipeline:
    """Give the pipeline with the layer around its loop, or around its model call."""
    loops = (i for i, layer in enumerate(pipeline.layers) if _is_loop(layer.cls))
    place = next(loops, len(pipeline.layers))
    held = copy.copy(pipeline)
    held.layers = [*pipeline.layers]
    held.layers.insert(place, Layer(StructuredOutput, (output,)))
    return held


def _is_loop(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, Loop)


def _is_final(answer: Message) -> bool:
    return answer.role == ASSISTANT and answer.status == COMPLETE and not answer.calls
