"""The embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django.compaction import CompactionPipeline, Summarize, record
from nexo_django.completion import LiteLLMCompletion, offline
from nexo_django.exceptions import TurnCancelled
from nexo_django.messages import Message
from nexo_django.pipeline import Env
from tests.completion.support import Cancelling, Weather, told


class Forecast(Weather):
    """A tool with arguments of several types."""

    name = "forecast"

    def definition(self) -> dict[str, Any]:
        """Give the schema."""
        types = {"city": "string", "days": "integer", "metric": "boolean"}
        properties = {name: {"type": type_} for name, type_ in types.items()}
        function = {"name": "forecast", "parameters": {"properties": properties}}
        return {"type": "function", "function": function}


TOOLS = [Weather(), Forecast()]


def say(*texts: str, tools: list[Any] | None = None) -> str:
    messages = []
    for text in texts:
        messages.append(Message("user", text))
        said, calls = offline.answer(messages, tools or [])
        assert not calls
        messages.append(Message("assistant", said))
    return said


def calls(text: str, tools: Any = TOOLS) -> list[tuple[str, dict[str, Any]]]:
    _, made = offline.answer([Message("user", text)], tools)
    return [(call.name, call.arguments) for call in made]


@pytest.mark.parametrize(
    ("told_", "question", "answer"),
    [
        ("My name is Mac.", "What is my name?", "Your name is Mac."),
        ("my name is Mac", "what's my name", "Your name is Mac."),
        ("Hi! My name is Zoë O'Neil, hello", "Tell me my name.", "Your name is Zoë O'Neil."),
        ("My favourite colour is blue", "What is my favourite colour?", "colour is blue."),
        ("My dog's name is Rex", "Do you remember my dog's name?", "dog's name is Rex."),
        ("My age is 3.5 and my city is Oslo", "What is my age?", "Your age is 3.5."),
        ("My age is 3.5 and my city is Oslo", "What is my city?", "Your city is Oslo."),
        ("My name is 小明。", "What is my name?", "小明"),
    ],
)
def test_it_remembers_what_it_was_told(told_: str, question: str, answer: str) -> None:
    assert answer in say(told_, "Something else.", question)


def test_the_layer_that_summarises_can_ask_it() -> None:
    said = ["My name is Mac.", "Hello " * 400, "My city is Oslo.", "Hello " * 400, "Bye."]
    messages = [
        message
        for text in said
        for message in (Message("user", text), Message("assistant", offline.answer([])[0]))
    ]
    ladder = CompactionPipeline().run(Summarize(LiteLLMCompletion("nexo/offline")))
    smaller = ladder.compact(messages, target=400)
    assert smaller is not None
    question = Message("user", "What is my name?")
    assert offline.answer([*smaller, question])[0] == "Your name is Mac."


def test_the_newest_fact_counts() -> None:
    assert say("My name is Mac.", "My name is Ann.", "What is my name?") == "Your name is Ann."


def test_it_says_what_it_does_not_know() -> None:
    assert say("What is my name?") == "I do not know your name."
    assert "not know" in say("What do you know about me?")


def test_it_lists_what_it_knows() -> None:
    assert say("My name is Mac. My city is Oslo.", "What do you know about me?") == (
        "Your name is Mac. Your city is Oslo."
    )


def test_it_never_takes_its_own_words_or_a_result_for_facts() -> None:
    messages = [
        Message("user", "Hello"),
        Message("assistant", "My name is Bot."),
        Message("tool", "My name is Tool.", tool_call_id="x"),
        Message("user", "What is my name?"),
    ]
    assert offline.answer(messages)[0] == "I do not know your name."


def test_a_summary_keeps_what_it_replaced() -> None:
    prompt = Message("system", record.prompt(100, None))
    history = Message("user", "[user] My name is Mac.\n[assistant] Noted. Your name is Mac.")
    text, _ = offline.answer([prompt, history])
    assert text == "Your name is Mac. The user began with: My name is Mac."
    summary = Message("user", text, kind="summary")
    answer, _ = offline.answer([summary, Message("user", "What is my name?")])
    assert answer == "Your name is Mac."
    # An agent's own instructions are no request for a summary of the conversation.
    answer, _ = offline.answer([Message("system", "Write a summary."), Message("user", "Hello")])
    assert answer.endswith("You said: Hello")


@pytest.mark.parametrize("text", ["Hello", "help", "Who are you?", "Write a poem"])
def test_it_is_honest(text: str) -> None:
    assert "not a language model" in say(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('call weather {"city": "Oslo"}', [("weather", {"city": "Oslo"})]),
        ('Please call the weather {"city": "Oslo"}.', [("weather", {"city": "Oslo"})]),
        (
            'call weather {"city": "a; b"}; forecast {"days": {"x": [1]}} ; other {}',
            [("weather", {"city": "a; b"}), ("forecast", {"days": {"x": [1]}}), ("other", {})],
        ),
        ("use the weather tool with city=Oslo", [("weather", {"city": "Oslo"})]),
        ("Use weather with city=New York.", [("weather", {"city": "New York"})]),
        (
            "use the forecast tool with city=7, days=3 and metric=true",
            [("forecast", {"city": "7", "days": 3, "metric": True})],
        ),
        ("use the weather tool", [("weather", {})]),
        ('loop 2 weather {"city": "Oslo"}', [("weather", {"city": "Oslo"})]),
        ("use the stairs", []),
        ("call me later", []),
        ("call", []),
    ],
)
def test_it_calls_tools_when_asked(text: str, expected: list[Any]) -> None:
    assert calls(text) == expected


def test_calls_need_tools_and_arguments() -> None:
    assert not calls('call weather {"city": "Oslo"}', ())
    assert "no tools" in say('call weather {"city": "Oslo"}')
    assert "JSON object" in say('call weather {"city": "Os', tools=TOOLS)


def test_it_reports_results_and_loops_as_often_as_asked() -> None:
    messages = [Message("user", 'loop 2 weather {"city": "Oslo"}')]
    for _ in range(2):
        _, made = offline.answer(messages, TOOLS)
        messages.append(Message("assistant", None, tool_calls=made))
        messages.append(Message("tool", "sunny", tool_call_id=made[0].id))
    text, made = offline.answer(messages, TOOLS)
    assert not made
    assert text == "\n".join(["The weather tool returned: sunny"] * 2)
    messages[-1] = messages[-1].replace(content="no such city", is_error=True)
    assert "The weather tool failed: no such city" in offline.answer(messages, TOOLS)[0]


@pytest.mark.parametrize("stream", [False, True])
def test_it_is_a_terminal_app(asked: Any, stream: bool) -> None:
    env = asked("My name is Mac.", stream=stream)
    LiteLLMCompletion("nexo/offline")(env)
    reply = env.reply
    assert (reply.content, reply.model) == ("Noted. Your name is Mac.", "nexo/offline")
    assert reply.finish_reason == "stop"
    assert reply.usage.cost == Decimal(0)
    assert reply.usage.input > 0
    assert env.metadata["last_llm_usage"] is reply.usage
    texts = [payload["text"] for payload in told(env, "content")]
    assert "".join(texts) == reply.content
    assert len(texts) == (5 if stream else 1)


def test_a_cancel_is_seen_between_words(asked: Any) -> None:
    env: Env = asked("Hello", stream=True)
    env.messages.recorder = recorder = Cancelling()
    env.events.listeners.append(lambda kind, payload: setattr(recorder, "stop", True))
    with pytest.raises(TurnCancelled):
        LiteLLMCompletion("nexo/offline")(env)
    assert (env.reply.content, env.reply.status) == ("I", "interrupted")


def test_it_needs_no_litellm() -> None:
    code = (
        "import sys\n"
        "from nexo_django.pipeline import Pipeline\n"
        "from nexo_django.completion import LiteLLMCompletion\n"
        "env = Pipeline().run(LiteLLMCompletion()).start('Hello')\n"
        "assert env.reply.model == 'nexo/offline'\n"
        "assert not {'litellm', 'openai', 'tiktoken'} & set(sys.modules)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "", "PYTHONPATH": os.getcwd()}
    env.pop("DJANGO_SETTINGS_MODULE")
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=200) | st.from_regex(r"(call|loop 3|use) \w+ [{}\w=;, ]*"))
def test_any_text_has_the_same_answer_again(text: str) -> None:
    messages = [Message("user", text)]
    said, made = offline.answer(messages, TOOLS)
    assert bool(said.strip()) is not bool(made)
    assert offline.answer(messages, TOOLS) == (said, made)


@pytest.mark.parametrize("text", ["my " * 50_000, "my a is " * 20_000, "call a {" * 20_000])
def test_long_texts_take_no_time(text: str) -> None:
    assert say(text, tools=TOOLS)
