"""Counting: golden values, what errs high, what is never nothing, and the provider's report."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexo_django import tokens
from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
    Usage,
)
from nexo_django.tokens import (
    RULER,
    Approximate,
    Calibrated,
    Tiktoken,
    anchor,
    calibration,
    count_text,
    estimate,
    estimate_message,
    exact,
    measure,
    render,
    same_model,
)
from tests.fuzz import examples

SETTINGS = settings(max_examples=examples(100), deadline=None)
COUNTERS = pytest.mark.parametrize("counter", [Approximate(), Tiktoken()], ids=("cheap", "o200k"))


def test_the_golden_values_of_the_estimate():
    counter = Approximate()
    assert counter.count([]) == 0
    assert counter.count([Message(USER, "a" * 400)]) == 105
    assert counter.count([Message(USER, "a" * 40)]) == 15
    assert estimate_message(Message(USER, "a" * 400)) == 105
    assert Approximate.ruler == RULER
    assert Tiktoken().ruler != RULER


@pytest.mark.parametrize("ratio", [0, -1.5])
def test_a_ratio_that_is_not_positive_is_refused(ratio):
    with pytest.raises(ValueError, match="chars_per_token"):
        Approximate(chars_per_token=ratio)


def test_a_message_is_counted_as_it_is_rendered():
    call = ToolCall("c1", "search", {"q": "é"})
    asked = Message(ASSISTANT, "let me see", tool_calls=[call])
    assert render(asked) == 'assistant: let me see search({"q": "é"}) -> c1'
    assert render(Message(TOOL, "x", tool_call_id="c1")) == "tool: x (answering c1)"
    broken = ToolCall("c1", "search", {}, raw_arguments="{oops")
    assert "{oops" in render(Message(ASSISTANT, tool_calls=[broken]))


TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": "search_orders",
        "description": "Find the orders of a customer, the newest first.",
        "parameters": {
            "type": "object",
            "properties": {
                "customer": {"type": "string", "description": "The customer's number."},
                "limit": {"type": "integer", "description": "At most so many.", "default": 20},
                "status": {"type": "string", "enum": ["open", "paid", "cancelled"]},
            },
            "required": ["customer"],
        },
    },
}


def corpus() -> dict[str, str]:
    pick = random.Random(7)
    records = [{"id": i, "name": f"user{i}", "ok": True, "v": i * 1.37} for i in range(200)]
    return {
        "code": Path(tokens.__file__).read_text(encoding="utf-8"),
        "prose": (tokens.__doc__ or "") * 20,
        "json": json.dumps(records),
        "minified": json.dumps(records, separators=(",", ":")),
        "base64": base64.b64encode(pick.randbytes(30_000)).decode(),
        "hex": pick.randbytes(10_000).hex(),
        "uuids": "\n".join(str(uuid.UUID(int=pick.getrandbits(128))) for _ in range(100)),
        "chinese": "我们今天去公园玩天气很好" * 100,
        "emoji": "😀🎉🚀👨‍👩‍👧" * 100,
        "russian": "Привет, как дела сегодня? " * 50,
        "thai": "สวัสดีครับ วันนี้อากาศดี " * 50,
        "log": "\n".join(
            f"2026-11-30T21:03:{i:02d}Z INFO [w-{i}] GET /api/{i * 79} 200" for i in range(60)
        ),
        "nothing but NUL": "\0" * 500,
    }


@pytest.mark.parametrize("kind", sorted(corpus()))
def test_the_estimate_errs_high_and_not_wildly(kind):
    text = corpus()[kind]
    real = count_text(text)
    assert 0.95 * real <= estimate(text) <= 5 * real


@SETTINGS
@given(st.text(), st.text())
def test_a_longer_text_is_never_estimated_lower(text, more):
    assert 0 <= estimate(text) <= estimate(text + more)


@COUNTERS
@SETTINGS
@given(st.lists(st.text(max_size=40).map(lambda text: Message(USER, text)), max_size=8))
def test_the_count_of_a_list_is_the_sum_of_its_messages(counter, messages):
    assert counter.count(messages) == sum(counter.count([m]) for m in messages)


@COUNTERS
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}},
        {"type": "image", "ref": "a.png", "width": 800, "height": 600},
        {"type": "image_url", "image_url": {"url": "x", "detail": "high"}},
        {"type": "file", "ref": "a.pdf", "pages": 3},
        {"type": "input_audio", "ref": "a.wav"},
        {"type": "text", "text": "hello"},
        {"type": "hologram", "shape": {"deep": [1, 2, 3]}},
        {},
    ],
    ids=lambda part: str(part.get("type", "nameless")),
)
def test_every_part_counts_and_an_image_is_not_counted_as_its_text(counter, part):
    bare, full = Message(USER, "see"), Message(USER, "see", parts=[part])
    added = counter.count([full]) - counter.count([bare])
    assert 0 < added <= 5000


def test_the_schemas_count_when_tools_are_given():
    schema = {"type": "function", "function": {"name": "search", "parameters": {"x": 1}}}
    for counter in (Approximate(), Tiktoken()):
        assert counter.count([], tools=[schema]) > 5
        assert counter.count([], tools=[]) == 0


def test_reasoning_counts():
    thought = Message(ASSISTANT, "yes", reasoning={"text": "because " * 100})
    assert Approximate().count([thought]) > 150


def test_o200k_counts_without_a_network_and_without_litellm():
    code = (
        "import sys; from nexo_django.tokens import count_text, _encoder;"
        "assert _encoder() is not None;"
        "assert count_text('Hello, world!') == 4, count_text('Hello, world!');"
        "assert 'litellm' not in sys.modules and 'requests' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ENCODINGS = pytest.mark.parametrize("encoding", ["o200k", "cl100k"])


@pytest.fixture
def encode(encoding, monkeypatch):
    """Give tiktoken's own encoding, which it would download."""
    tiktoken = pytest.importorskip("tiktoken")
    found = tokens.importlib.util.find_spec("litellm").submodule_search_locations[0]
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{found}/litellm_core_utils/tokenizers")
    return tiktoken.get_encoding(f"{encoding}_base").encode_ordinary


@ENCODINGS
def test_the_encoding_is_tiktokens_own(encoding, encode):
    for text in corpus().values():
        assert abs(count_text(text, encoding) - len(encode(text))) <= len(text) // 100_000


@ENCODINGS
def test_how_far_the_counts_are_from_the_providers(encoding, encode):
    # What OpenAI adds: three tokens and the role's to each message.
    counter = Tiktoken(encoding=encoding)
    print(f"\n{encoding:16} {'provider':>9} {'exact':>9} {'estimate':>9}")
    for kind, text in corpus().items():
        message = Message(USER, text)
        real = len(encode(text)) + 4
        exactly, roughly = counter.count([message]), estimate_message(message)
        print(f"{kind:16} {real:9,} {exactly / real:9.1%} {roughly / real:9.1%}")
        assert 0.9 * real <= exactly <= 1.1 * real
        # NUL is replaced before anything is sent.
        assert 0.9 * real <= roughly or "NUL" in kind
    shown = [TOOL_SCHEMA] * 5
    real = len(encode(json.dumps(shown)))
    exactly, roughly = (c.count([], tools=shown) for c in (counter, Approximate()))
    print(f"{'tool schemas':16} {real:9,} {exactly / real:9.1%} {roughly / real:9.1%}")
    assert 0.9 * real <= exactly <= 1.1 * real
    assert 0.9 * real <= roughly


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("openai/gpt-4o-mini", "o200k"),
        ("gpt-5", "o200k"),
        ("openai/gpt-4.1-nano", "o200k"),
        ("o3-mini", "o200k"),
        ("openrouter/openai/gpt-oss-120b", "o200k"),
        ("ft:gpt-4o:org::1", "o200k"),
        ("azure/gpt-35-turbo", "cl100k"),
        ("gpt-4-turbo", "cl100k"),
        ("openai/gpt-4", "cl100k"),
        ("anthropic/claude-sonnet-4-5", None),
        ("azure/my-deployment", None),
        ("nexo/offline", None),
        ("ollama/olmo2", None),
        (None, None),
    ],
)
def test_who_counts_with_which_encoding(model, encoding):
    counter = exact(model)
    assert (None if counter is None else counter.encoding) == encoding
    assert counter is None or counter.ruler == f"{encoding}:1"


def test_a_message_is_encoded_once():
    tokens._remembered.clear()
    messages = [Message(USER, f"text {number}") for number in range(5)]
    counter = Tiktoken()
    before = counter.count(messages)
    assert len(tokens._remembered) == 5
    assert Tiktoken().count([*messages, messages[0]]) > before
    assert len(tokens._remembered) == 5
    Tiktoken(encoding="cl100k").count(messages)
    assert len(tokens._remembered) == 10


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(tokens, "_REMEMBERED", 3)
    tokens._remembered.clear()
    messages = [Message(USER, f"text {number}") for number in range(9)]
    assert Tiktoken().count(messages) == Tiktoken().count(messages)
    assert len(tokens._remembered) == 3


@ENCODINGS
@pytest.mark.parametrize("character", [" ", "a", "\n", "我", "1", "!"])
def test_a_million_of_one_character_is_counted(encoding, character):
    message = Message(USER, character * 1_000_000)
    assert 1_000 < Tiktoken(encoding=encoding).count([message]) <= 1_010_000
    assert estimate_message(message) > 1_000


@pytest.mark.parametrize(
    "text",
    [" " * 1_200_000, "<|endoftext|>", "\ud800 lone"],
    ids=("spaces", "special", "surrogate"),
)
def test_what_makes_a_tokenizer_fail_is_counted(text):
    assert count_text(text) > 0


def test_without_the_file_or_the_tokenizer_the_estimate_counts(monkeypatch):
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda name: None)
    tokens._load.cache_clear()
    try:
        assert count_text("some text of several words") == estimate("some text of several words")
    finally:
        tokens._load.cache_clear()


def test_threads_may_count_at_once():
    tokens._load.cache_clear()
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(count_text("one two"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("openai/gpt-4o", "gpt-4o", True),
        ("openai/gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("claude-3", "claude-3-5-sonnet", False),
        ("a/b", None, True),
        ("a", "b", False),
    ],
)
def test_one_model_has_several_names(one, other, same):
    assert same_model(one, other) is same
    assert same_model(other, one) is same


def told(tokens_in: int, model: str = "m", **fields) -> Message:
    return Message(ASSISTANT, "ok", model=model, usage=Usage(input=tokens_in, output=10), **fields)


def test_the_provider_is_believed_and_the_rest_counted():
    counter = Approximate()
    later = Message(USER, "a" * 400)
    messages = [Message(USER, "a" * 400), told(105), later]
    assert measure(messages, counter, model="m") == (115 + 105, 1.0)


def test_what_the_provider_counted_more_is_expected_of_later_messages_too():
    messages = [Message(USER, "a" * 400), told(210), Message(USER, "a" * 400)]
    assert measure(messages, Approximate(), model="m") == (220 + 210, 2.0)


@pytest.mark.parametrize(
    "answer",
    [told(500, "another"), told(500, status=INTERRUPTED), told(0), told(7), Message(ASSISTANT)],
    ids=("of another model", "cut short", "without input", "made up", "without usage"),
)
def test_a_report_that_says_nothing_is_left_aside(answer):
    messages = [Message(SYSTEM, "x"), Message(USER, "a" * 400), answer]
    assert measure(messages, Approximate(), model="m")[0] == Approximate().count(messages)


def test_a_report_from_before_the_view_is_left_aside():
    messages = [Message(USER, "x"), told(90_000), Message(USER, "y")]
    assert anchor(messages, "m", since=2) is None
    assert anchor(messages, "m", since=1) == 1


def test_an_earlier_report_serves_when_the_last_answer_has_none():
    messages = [Message(USER, "x"), told(50), Message(USER, "y"), told(70, status=INTERRUPTED)]
    assert anchor(messages, "m") == 1


def test_calibration_stays_within_what_can_be_believed():
    assert calibration(10, 100) == 1.0
    assert calibration(150, 100) == 1.5
    assert calibration(1000, 100) == 3.0
    assert calibration(5, 0) == 1.0
    counter = Calibrated(Approximate(), 2.0)
    assert counter.count([Message(USER, "a" * 400)]) == 210
    assert counter.count([]) == 0
