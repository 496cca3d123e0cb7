"""The completion over a real wire, through the real litellm."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nexo_django.completion import LiteLLMCompletion, check, warm
from nexo_django.exceptions import (
    AuthFailed,
    BadRequest,
    ConfigurationError,
    ContextOverflow,
    LimitExceeded,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    TurnCancelled,
)
from nexo_django.messages import ToolCall
from tests.completion.conftest import SECRET
from tests.completion.server import answer, cut, fail, hang, html
from tests.completion.support import Cancelling, Weather, told

PARALLEL = [("call_a", "weather", '{"city": "Oslo"}'), ("call_b", "weather", '{"city": "Lima"}')]
STREAMED = pytest.mark.parametrize("stream", [False, True])


@STREAMED
def test_a_plain_answer(wire: Any, completion: Any, asked: Any, stream: bool) -> None:
    wire.then(answer("The answer is 42.", reasoning="Let me think."))
    env = asked(stream=stream)
    completion()(env)
    reply = env.reply
    assert reply.content == "The answer is 42."
    assert (reply.model, reply.finish_reason) == ("openai/gpt-4o-mini", "stop")
    assert reply.reasoning == {"issuer": "openai/gpt-4o-mini", "text": "Let me think."}
    assert "".join(p["text"] for p in told(env, "content")) == reply.content
    assert "".join(p["text"] for p in told(env, "reasoning")) == "Let me think."
    assert (len(told(env, "content")) > 1) is stream
    assert not wire.faults


@STREAMED
def test_usage_and_its_frozen_cost(wire: Any, completion: Any, asked: Any, stream: bool) -> None:
    env = asked(stream=stream)
    completion()(env)
    usage = env.reply.usage
    assert (usage.input, usage.output, usage.cached, usage.reasoning) == (1000, 100, 400, 30)
    # 600 fresh, 400 cached and 100 output tokens at the listed prices of gpt-4o-mini.
    assert usage.cost == Decimal("0.00018")
    assert usage.raw["prompt_tokens"] == 1000
    assert env.metadata["last_llm_usage"] is usage
    assert ("stream_options" in wire.requests[0]) is stream


@STREAMED
def test_the_cost_of_an_unknown_model_is_unknown(completion: Any, asked: Any, stream: bool) -> None:
    env = asked(stream=stream)
    completion("openai/nobody-lists-this")(env)
    assert env.reply.usage.input == 1000
    assert env.reply.usage.cost is None


@STREAMED
def test_parallel_calls_and_their_results(
    wire: Any, completion: Any, asked: Any, stream: bool
) -> None:
    wire.then(answer(calls=PARALLEL), answer("Both are sunny."))
    env = asked("Weather?", tools=[Weather()], stream=stream)
    completion()(env)
    assert env.reply.content is None
    assert [(c.id, c.arguments["city"]) for c in env.reply.calls] == [
        ("call_a", "Oslo"),
        ("call_b", "Lima"),
    ]
    assert env.reply.finish_reason == "tool_calls"
    assert wire.requests[0]["tools"] == [Weather().definition()]
    env.messages.tool("call_b", "sunny")
    env.messages.tool("call_a", "sunny")
    completion()(env)
    assert env.reply.content == "Both are sunny."
    sent = wire.requests[1]["messages"]
    assert [m.get("tool_call_id") for m in sent if m["role"] == "tool"] == ["call_a", "call_b"]
    assert not wire.faults


@STREAMED
@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1]", "null", '{"a": NaN}', "Oslo"])
def test_arguments_that_are_no_object_are_kept_raw(
    wire: Any, completion: Any, asked: Any, stream: bool, arguments: str
) -> None:
    wire.then(answer(calls=[("call_a", "weather", arguments)]), answer("Sorry."))
    env = asked(tools=[Weather()], stream=stream)
    completion()(env)
    (call,) = env.reply.calls
    assert (call.arguments, call.raw_arguments) == ({}, arguments)
    env.messages.tool("call_a", "wrong arguments", is_error=True)
    completion()(env)
    (sent,) = wire.requests[1]["messages"][1]["tool_calls"]
    assert sent["function"]["arguments"] == "{}"
    assert not wire.faults


@STREAMED
def test_an_empty_answer_is_recorded_and_not_replayed(
    wire: Any, completion: Any, asked: Any, stream: bool
) -> None:
    wire.then(answer(""))
    env = asked(stream=stream)
    completion()(env)
    assert env.reply.content == ""
    env.messages.user("Are you there?")
    completion()(env)
    assert [m["role"] for m in wire.requests[1]["messages"]] == ["user", "user"]
    assert not wire.faults


def test_the_hooks_frame_the_call(completion: Any, asked: Any) -> None:
    heard: list[str] = []
    names = ("before_llm", "after_llm", "llm_failure")
    hooks = {name: [lambda env, payload, name=name: heard.append(name)] for name in names}
    completion()(asked(hooks=hooks))
    assert heard == ["before_llm", "after_llm"]


def test_the_model_comes_from_the_constructor_then_the_env(wire: Any, asked: Any) -> None:
    options = {"api_base": wire.url, "api_key": SECRET}
    LiteLLMCompletion(**options)(asked(model="openai/from-the-env"))
    LiteLLMCompletion("openai/own", **options)(asked(model="openai/from-the-env"))
    assert [r["model"] for r in wire.requests] == ["from-the-env", "own"]


def test_options_go_to_the_provider_less_those_it_does_not_know(
    wire: Any, completion: Any, asked: Any
) -> None:
    completion(temperature=0.5, top_k=3, thinking={"type": "enabled", "budget_tokens": 1024})(
        asked()
    )
    assert wire.requests[0]["temperature"] == 0.5
    assert "thinking" not in wire.requests[0]


@pytest.mark.parametrize("name", ["messages", "stream", "num_retries", "tools"])
def test_options_that_are_ours_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        LiteLLMCompletion("openai/gpt-4o", **{name: 1})


def test_a_base_address_in_the_environment_counts(
    wire: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", wire.url)
    monkeypatch.setenv("OPENAI_API_BASE", wire.url)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    env = asked()
    LiteLLMCompletion("openai/gpt-4o-mini")(env)
    assert env.reply.content == "ok"
    assert wire.headers[0]["authorization"] == f"Bearer {SECRET}"


@STREAMED
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (fail(400, "Invalid", type="invalid_request_error"), BadRequest),
        (fail(401, f"Incorrect API key provided: {SECRET}"), AuthFailed),
        (fail(403, "no"), AuthFailed),
        (fail(404, "The model does not exist", code="model_not_found"), BadRequest),
        (fail(422, "no"), BadRequest),
        (fail(429, "slow down"), RateLimited),
        (fail(429, "You exceeded your current quota", code="insufficient_quota"), RateLimited),
        (fail(500), ProviderUnavailable),
        (fail(502), ProviderUnavailable),
        (fail(503), ProviderUnavailable),
        (fail(529), ProviderUnavailable),
        (fail(504), ProviderTimeout),
        (
            fail(
                400,
                "This model's maximum context length is 128000 tokens.",
                code="context_length_exceeded",
            ),
            ContextOverflow,
        ),
        (fail(413, "Request too large for model, please reduce your message"), ContextOverflow),
    ],
)
def test_failures_are_ours(
    wire: Any, completion: Any, asked: Any, act: Any, kind: type[ProviderError], stream: bool
) -> None:
    wire.then(act)
    env = asked("A secret question", stream=stream)
    with pytest.raises(kind) as caught:
        completion(max_retries=0)(env)
    assert type(caught.value) is kind
    assert env.reply is None
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert SECRET not in shown
    assert "A secret question" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "gpt-4o-mini" in str(caught.value)
    # The next call of the same env goes through.
    completion()(env)
    assert env.reply.content == "ok"


def test_a_failure_tells_the_hook(wire: Any, completion: Any, asked: Any) -> None:
    heard: list[Any] = []
    wire.then(fail(400))
    with pytest.raises(BadRequest):
        completion()(asked(hooks={"llm_failure": [lambda env, payload: heard.append(payload)]}))
    assert type(heard[0]["error"]) is BadRequest


@STREAMED
def test_a_page_in_place_of_an_answer(wire: Any, completion: Any, asked: Any, stream: bool) -> None:
    wire.then(html(502))
    with pytest.raises(ProviderUnavailable):
        completion(max_retries=0)(asked(stream=stream))


def test_a_page_with_status_200(wire: Any, completion: Any, asked: Any) -> None:
    wire.then(html(200))
    with pytest.raises(ProviderError):
        completion(max_retries=0)(asked())


@STREAMED
def test_a_refused_connection(completion: Any, asked: Any, stream: bool) -> None:
    # Bound and not listening: nobody else can take the port, and nobody answers.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        with pytest.raises(ProviderUnavailable, match="could not be reached"):
            completion(api_base=base, max_retries=0)(asked(stream=stream))


@STREAMED
def test_a_missing_key_names_the_variable(
    wire: Any, asked: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    env = asked(stream=stream)
    with pytest.raises(AuthFailed, match="OPENAI_API_KEY"):
        LiteLLMCompletion("openai/gpt-4o-mini", api_base=wire.url)(env)
    assert not told(env, "retry")
    assert not wire.requests


@STREAMED
def test_a_silent_provider_is_a_timeout(
    wire: Any, completion: Any, asked: Any, stream: bool
) -> None:
    wire.then(hang)
    with pytest.raises(ProviderTimeout):
        completion(timeout=0.5, max_retries=0)(asked(stream=stream))


@STREAMED
def test_retries_wait_as_long_as_asked(
    wire: Any, completion: Any, asked: Any, stream: bool
) -> None:
    wire.then(fail(429, "slow down", headers={"Retry-After": "1"}), fail(503), answer("At last."))
    env = asked(stream=stream)
    began = time.monotonic()
    completion(max_retries=2)(env)
    assert env.reply.content == "At last."
    first, second = told(env, "retry")
    assert (first["attempt"], first["error"]) == (1, "RateLimited")
    assert (second["attempt"], second["error"]) == (2, "ProviderUnavailable")
    assert first["wait"] >= 1
    assert time.monotonic() - began >= first["wait"]
    assert len(wire.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_would_fail_again_is_not_retried(
    wire: Any, completion: Any, asked: Any, status: int
) -> None:
    wire.then(fail(status))
    env = asked()
    with pytest.raises(ProviderError):
        completion(max_retries=5)(env)
    assert len(wire.requests) == 1
    assert not told(env, "retry")


def test_a_long_wait_is_left_to_the_caller(wire: Any, completion: Any, asked: Any) -> None:
    wire.then(fail(429, "tomorrow", headers={"Retry-After": "86400"}))
    with pytest.raises(RateLimited) as caught:
        completion()(asked())
    assert caught.value.retry_after == 86400
    assert len(wire.requests) == 1


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_stream_that_is_cut_keeps_its_text_and_is_not_retried(
    wire: Any, completion: Any, asked: Any, how: str
) -> None:
    # A reset may overtake the text on its way: then the call is tried again.
    wire.then(*[cut("Half an ans", how)] * 4)
    env = asked(stream=True)
    with pytest.raises(ProviderUnavailable) as caught:
        completion(max_retries=3)(env)
    kept = [m for m in env.messages if m.role == "assistant"]
    assert how == "reset" or kept
    assert all((m.content, m.status) == ("Half an ans", "interrupted") for m in kept)
    assert how == "reset" or len(wire.requests) == 1
    assert caught.value.__context__ is None


def test_a_stream_that_stalls_is_a_timeout_with_its_text(
    wire: Any, completion: Any, asked: Any
) -> None:
    wire.then(cut("Half", "hang"))
    env = asked(stream=True)
    with pytest.raises(ProviderError) as caught:
        completion(timeout=4, max_retries=3)(env)
    assert isinstance(caught.value, ProviderTimeout | ProviderUnavailable)
    assert (env.reply.content, env.reply.status) == ("Half", "interrupted")
    assert len(wire.requests) == 1


def test_a_stream_that_ends_before_its_text_is_retried(
    wire: Any, completion: Any, asked: Any
) -> None:
    wire.then(cut(""), answer("Now."))
    env = asked(stream=True)
    completion()(env)
    assert env.reply.content == "Now."
    assert [m.role for m in env.messages] == ["user", "assistant"]


@STREAMED
def test_the_deadline_ends_a_call(wire: Any, completion: Any, asked: Any, stream: bool) -> None:
    wire.then(hang)
    warm()
    env = asked(stream=stream, deadline=time.monotonic() + 1)
    with pytest.raises(LimitExceeded):
        completion()(env)


def test_a_wait_past_the_deadline_is_not_begun(wire: Any, completion: Any, asked: Any) -> None:
    wire.then(fail(429, "later", headers={"Retry-After": "50"}))
    env = asked(deadline=time.monotonic() + 45)
    with pytest.raises(RateLimited):
        completion()(env)
    assert not told(env, "retry")


def test_a_cancel_is_seen_between_chunks(wire: Any, completion: Any, asked: Any) -> None:
    wire.then(answer("one two three four"))
    env = asked(stream=True)
    env.messages.recorder = recorder = Cancelling()
    env.events.listeners.append(lambda kind, payload: setattr(recorder, "stop", kind == "content"))
    with pytest.raises(TurnCancelled):
        completion()(env)
    assert (env.reply.content, env.reply.status) == ("one ", "interrupted")


def test_a_cancel_is_seen_while_waiting_to_retry(wire: Any, completion: Any, asked: Any) -> None:
    wire.then(fail(503, headers={"Retry-After": "55"}))
    env = asked()
    env.messages.recorder = recorder = Cancelling()
    env.events.listeners.append(lambda kind, payload: setattr(recorder, "stop", kind == "retry"))
    with pytest.raises(TurnCancelled):
        completion()(env)
    assert len(wire.requests) == 1


@pytest.mark.parametrize("signal_", [KeyboardInterrupt, GeneratorExit, ValueError])
def test_what_a_listener_raises_keeps_the_text_and_passes(
    wire: Any, completion: Any, asked: Any, signal_: type[BaseException]
) -> None:
    def listen(kind: str, payload: dict[str, Any]) -> None:
        if payload.get("text") == "two ":
            raise signal_

    wire.then(answer("one two three"))
    env = asked(stream=True)
    env.events.listeners.append(listen)
    with pytest.raises(signal_):
        completion()(env)
    assert (env.reply.content, env.reply.status) == ("one two ", "interrupted")


def test_an_error_handled_outside_is_no_part_of_the_failure(
    wire: Any, completion: Any, asked: Any
) -> None:
    class HostError(Exception):
        pass

    def ask() -> None:
        try:
            raise HostError
        except HostError:
            completion()(asked())

    wire.then(fail(400))
    with pytest.raises(BadRequest):
        ask()


CHILD = """
import os, signal, sys
from billiard.exceptions import SoftTimeLimitExceeded
from nexo_django.completion import LiteLLMCompletion
from nexo_django.messages import MessageLog
from nexo_django.pipeline import Env

class HostLimit(Exception):
    pass

def stop(number, frame):
    raise limit

signal.signal(signal.SIGUSR1, stop)
for limit in (SoftTimeLimitExceeded(), HostLimit(), KeyboardInterrupt(), TimeoutError("own")):
    for stream in (False, True):
        env = Env(messages=MessageLog(), stream=stream)
        env.messages.user("Hello")
        try:
            LiteLLMCompletion("openai/gpt-4o-mini", api_base=sys.argv[1], api_key="sk-x")(env)
        except BaseException as error:
            print(error is limit, type(error).__name__, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs POSIX signals")
def test_a_time_limit_that_strikes_inside_litellm_passes_through(wire: Any, tmp_path: Path) -> None:
    """In a process of its own, signalled when its request is here: no clock is involved."""
    pytest.importorskip("billiard")
    wire.then(*[hang] * 8)
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    child = subprocess.Popen(
        [sys.executable, str(script), wire.url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "", "PYTHONPATH": os.getcwd()},
    )
    try:
        for count in range(1, 9):
            wire.wait_for(count, timeout=120)
            child.send_signal(signal.SIGUSR1)
            assert child.stdout is not None
            assert child.stdout.readline().startswith("True"), f"call {count}"
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_reasoning_and_ids_of_another_provider_are_not_replayed(
    wire: Any, completion: Any, asked: Any
) -> None:
    env = asked()
    call = ToolCall("toolu_" + "x" * 80, "weather", {"b": 1, "a": 2}, provider_fields={"s": "x"})
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]
    reasoning = {"issuer": "anthropic/claude-sonnet-4-5", "text": "hm", "blocks": blocks}
    env.messages.assistant(None, tool_calls=(call,), reasoning=reasoning)
    env.messages.tool(call.id, "")
    before = list(env.messages)
    completion()(env)
    assert not wire.faults
    sent = wire.requests[0]["messages"][1]
    assert set(sent) <= {"role", "content", "tool_calls"}
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 1}
    assert env.messages[:3] == before


@pytest.mark.parametrize("own", [True, False])
def test_claude_gets_its_own_blocks_back_and_thinks_only_with_them(
    wire: Any, completion: Any, asked: Any, own: bool
) -> None:
    model = "anthropic/claude-sonnet-4-5"
    block = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    reasoning = {"issuer": model if own else "openai/gpt-5", "text": "hm", "blocks": [block]}
    env = asked(tools=[Weather()])
    call = ToolCall("call:1", "weather", {"city": "Oslo"})
    env.messages.assistant(None, tool_calls=(call,), reasoning=reasoning)
    env.messages.tool(call.id, "sunny")
    # The server does not speak this format; what it was sent is what counts.
    with pytest.raises(ProviderError):
        completion(model, thinking={"type": "enabled", "budget_tokens": 1024}, max_retries=0)(env)
    sent = wire.requests[0]
    blocks = sent["messages"][1]["content"]
    assert [b["type"] for b in blocks] == (["thinking", "tool_use"] if own else ["tool_use"])
    assert blocks[0] == block or not own
    assert ("thinking" in sent) is own
    assert sent["messages"][2]["content"][0]["tool_use_id"] == blocks[-1]["id"]


def test_requests_grow_at_their_end_only(wire: Any, completion: Any, asked: Any) -> None:
    call = ("same id", "weather", '{"z": 1, "a": [1, 2]}')
    wire.then(answer(calls=[call]), answer(calls=[call]), answer("Done."))
    env = asked(tools=[Weather()])
    for _ in range(3):
        completion()(env)
        for made in env.reply.calls:
            env.messages.tool(made.id, "sunny")
    requests = [json.dumps(r["messages"])[:-1] for r in wire.requests]
    assert requests[1].startswith(requests[0])
    assert requests[2].startswith(requests[1])
    assert not wire.faults


def test_nul_and_half_a_pair_are_sent_as_replacements(
    wire: Any, completion: Any, asked: Any
) -> None:
    completion()(asked("a\x00b\ud83dc"))
    assert wire.requests[0]["messages"][0]["content"] == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "model", ["", "  ", None, 3, "gibberish", "foo/bar", "openai/", "nexo/other", "a b/c"]
)
def test_check_refuses_what_is_no_model(model: Any) -> None:
    with pytest.raises(ConfigurationError):
        check(model)


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY"),
        ("mistral/mistral-large-latest", "MISTRAL_API_KEY"),
        ("groq/llama-3.3-70b-versatile", "GROQ_API_KEY"),
        ("openrouter/openai/gpt-4o", "OPENROUTER_API_KEY"),
    ],
)
def test_check_names_the_missing_variable(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_TOKEN")):
            monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=variable):
        check(model)
    check(model, api_key="k")
    check(model, api_base="http://127.0.0.1:1/v1")
    monkeypatch.setenv(variable, "k")
    check(model)


def test_check_of_a_completion_counts_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError):
        LiteLLMCompletion("openai/gpt-4o").check()
    LiteLLMCompletion("openai/gpt-4o", api_key="k").check()
    LiteLLMCompletion().check("nexo/offline")


def test_litellm_comes_with_the_first_call_only() -> None:
    code = (
        "import sys\n"
        "from nexo_django.completion import LiteLLMCompletion, check, offline, catalogue\n"
        "LiteLLMCompletion('nexo/offline').check()\n"
        "catalogue.facts('openai/gpt-4o')\n"
        "assert not {'litellm', 'openai', 'tiktoken'} & set(sys.modules)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "", "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)


@pytest.mark.skipif(
    os.environ.get("NEXO_LIVE") != "1" or not os.environ.get("NEXO_MODEL"),
    reason="asks a real provider: set NEXO_LIVE=1, NEXO_MODEL and the provider's key",
)
@STREAMED
def test_live(asked: Any, stream: bool) -> None:
    env = asked("Reply with the single word: pong", stream=stream)
    LiteLLMCompletion(os.environ["NEXO_MODEL"])(env)
    assert "pong" in env.reply.content.lower()
    assert env.reply.usage.input > 0
