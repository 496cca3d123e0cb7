"""Turns, steps and cuts; what a provider refuses; and the repair of anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.messages import (
    ASSISTANT,
    INTERRUPTED,
    KINDS,
    NOTICE,
    ROLES,
    SUMMARY,
    SYSTEM,
    TOOL,
    USER,
    Message,
    ToolCall,
)
from nexo_django.transcript import (
    distinct,
    interrupted_result,
    is_prompt,
    last_prompt,
    legal_cuts,
    open_calls,
    problem,
    repaired,
    request,
    sendable,
    steps,
    system_end,
    turns,
)

RULES = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])

SAID = Message(SYSTEM, "Be brief.")
ASK = Message(USER, "go")
DONE = Message(ASSISTANT, "done")


def calling(*ids: str, text: str | None = None) -> Message:
    return Message(ASSISTANT, text, tool_calls=[ToolCall(id_, "look", {"n": id_}) for id_ in ids])


def result(id_: str, text: str = "found") -> Message:
    return Message(TOOL, text, tool_call_id=id_)


# Few ids, so that they collide, repeat across turns and go unanswered.
ids = st.sampled_from(["a", "b", "c", ""])
texts = st.sampled_from([None, "", "  ", "hi", "a\x00"])
calls = st.builds(
    ToolCall,
    id=ids,
    name=st.sampled_from(["look", "find"]),
    arguments=st.sampled_from([{}, {"x": 1}, [1], None, {"x": float("nan")}, {"x": {1, 2}}]),
)
anything = st.builds(
    Message,
    role=st.sampled_from(ROLES),
    content=texts,
    tool_calls=st.none() | st.lists(calls, max_size=3),
    tool_call_id=st.none() | ids,
    kind=st.sampled_from(KINDS),
    mark=st.none() | st.just("tool_results"),
)
any_list = st.lists(anything, max_size=12)


@st.composite
def valid_lists(draw: st.DrawFn) -> list[Message]:
    messages = [SAID] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message(USER, draw(st.sampled_from(["one", "two"]))))
        for _ in range(draw(st.integers(0, 3))):
            used = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3))
            text = draw(st.sampled_from(["hi", "so"])) if not used else draw(texts)
            messages.append(calling(*used, text=text))
            messages += [result(id_) for id_ in used]
    return messages


@RULES
@given(any_list)
def test_whatever_the_list_the_repaired_one_can_be_sent(messages: list[Message]) -> None:
    sent = sendable(repaired(messages))
    if any(message.role != SYSTEM for message in sent):
        assert problem(sent) is None
    else:
        assert not any((m.content or "").strip() for m in messages if m.role == USER)


@RULES
@given(any_list, st.booleans())
def test_repair_is_idempotent_and_changes_nothing_in_place(
    messages: list[Message], keep_open: bool
) -> None:
    before = list(messages)
    once = repaired(messages, keep_open=keep_open)
    assert messages == before
    assert repaired(once, keep_open=keep_open) == once
    assert sendable(sendable(once)) == sendable(once)


@RULES
@given(valid_lists())
def test_a_valid_list_comes_back_the_same(messages: list[Message]) -> None:
    assert problem(messages) is None
    for given_back in (repaired(messages), sendable(messages)):
        assert len(given_back) == len(messages)
        assert all(new is old for new, old in zip(given_back, messages, strict=True))


@RULES
@given(valid_lists(), st.randoms(use_true_random=False))
def test_results_are_sent_in_call_order(messages: list[Message], random: Any) -> None:
    shuffled = list(messages)
    for step in steps(messages):
        results = messages[step.start + 1 : step.stop]
        random.shuffle(results)
        shuffled[step.start + 1 : step.stop] = results
    assert sendable(shuffled) == messages
    assert repaired(shuffled) == messages


@RULES
@given(valid_lists(), st.integers(0, 30))
def test_any_cut_off_end_can_be_repaired(messages: list[Message], at: int) -> None:
    assert problem([SAID, ASK, *sendable(repaired(messages[:at]))[1:]]) is None or at < 2
    kept = repaired(messages[:at])
    assert problem(sendable(kept)) is None or not kept or kept == [SAID]


@RULES
@given(valid_lists())
def test_legal_cuts_part_no_step(messages: list[Message]) -> None:
    for cut in legal_cuts(messages):
        rest = [ASK, *messages[cut:]]
        assert problem(rest) is None
        assert problem([*messages[:cut], ASK]) is None


@RULES
@given(any_list)
def test_all_functions_take_any_list(messages: list[Message]) -> None:
    problem(messages)
    open_calls(messages)
    last_prompt(messages)
    assert all(messages[turn.start].role == USER for turn in turns(messages))
    assert all(messages[step.start].role == ASSISTANT for step in steps(messages))
    assert system_end(messages) <= len(messages)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "no user message"),
        ([SAID], "no user message"),
        ([ASK, SAID], "message 1 (system): a system message that is not the first"),
        ([SAID, SAID, ASK], "message 1 (system)"),
        ([SAID, DONE], "does not begin with a user message"),
        ([ASK, Message(USER, " \n")], "message 1 (user): empty"),
        ([ASK, Message(ASSISTANT)], "message 1 (assistant): empty"),
        ([ASK, result("a")], "without its call"),
        ([ASK, calling("a")], "without a result at the end: 1"),
        ([ASK, calling("a"), ASK], "message 2 (user): calls before it have no result: 1"),
        ([ASK, calling("a"), result("a"), result("a")], "message 3 (tool)"),
        ([ASK, calling("a", "a"), result("a")], "without an id of its own"),
        ([ASK, calling(""), result("")], "without an id of its own"),
        ([Message(USER, "x", tool_calls=[ToolCall("a", "f")])], "only an assistant"),
        ([ASK, Message(ASSISTANT, tool_calls=[ToolCall("a", "f", [])])], "not a JSON object"),  # type: ignore[arg-type]
    ],
)
def test_problem_says_which_message_and_why(messages: list[Message], said: str) -> None:
    found = problem(messages)
    assert found is not None
    assert said in found


def test_problem_names_no_content() -> None:
    assert "secret" not in (problem([Message(ASSISTANT, "secret")]) or "")


def test_an_unanswered_call_gets_an_interrupted_result() -> None:
    fixed = repaired([ASK, calling("a", "b"), result("b"), ASK])
    assert fixed == [
        ASK,
        calling("a", "b"),
        interrupted_result(ToolCall("a", "x")),
        result("b"),
        ASK,
    ]
    assert fixed[2].is_error


def test_the_last_step_may_be_left_open() -> None:
    messages = [ASK, calling("a"), ASK, calling("a", "b"), result("b")]
    fixed = repaired(messages, keep_open=True)
    assert [m.role for m in fixed] == [USER, ASSISTANT, TOOL, USER, ASSISTANT, TOOL]
    assert [call.id for call in open_calls(fixed)] == ["a"]
    assert open_calls(repaired(messages)) == []


def test_nothing_is_open_after_another_message() -> None:
    assert open_calls([ASK, calling("a"), ASK]) == []
    assert open_calls([]) == []
    assert [call.id for call in open_calls([calling("a", "b")])] == ["a", "b"]


def test_a_late_result_goes_back_to_its_call() -> None:
    messages = [ASK, calling("a"), Message(USER, "and?"), result("a")]
    assert repaired(messages) == [ASK, calling("a"), result("a"), Message(USER, "and?")]


def test_ids_that_come_again_in_another_turn_are_no_matter() -> None:
    turn = [ASK, calling("a"), result("a"), DONE]
    assert repaired(turn * 3) == turn * 3
    assert problem(turn * 3) is None


def test_a_result_belongs_to_the_latest_use_of_its_id() -> None:
    messages = [ASK, calling("a"), ASK, calling("a"), result("a", "second")]
    fixed = repaired(messages)
    assert fixed[2] == interrupted_result(ToolCall("a", "x"))
    assert fixed[5] == result("a", "second")


def test_ids_that_come_twice_in_one_message_are_told_apart() -> None:
    fixed = repaired([ASK, calling("a", "a"), result("a", "1"), result("a", "2")])
    assert [call.id for call in fixed[1].calls] == ["a", "a-2"]
    assert [(m.tool_call_id, m.content) for m in fixed[2:]] == [("a", "1"), ("a-2", "2")]


def test_a_second_result_is_left_out() -> None:
    assert repaired([ASK, calling("a"), result("a", "1"), result("a", "2")]) == [
        ASK,
        calling("a"),
        result("a", "1"),
    ]


def test_one_system_message_stays_in_front() -> None:
    other = Message(SYSTEM, "Be long.")
    assert repaired([ASK, SAID, DONE, other]) == [SAID, ASK, DONE]


def test_a_beginning_that_is_gone_is_said_so() -> None:
    fixed = repaired([SAID, DONE, ASK])
    assert [m.kind for m in fixed] == ["normal", NOTICE, "normal", "normal"]
    assert fixed[2:] == [DONE, ASK]


def test_what_says_nothing_is_not_sent() -> None:
    empty = Message(ASSISTANT, None, reasoning={"text": "hm"})
    assert sendable([SAID, ASK, empty, Message(USER, ""), DONE]) == [SAID, ASK, DONE]


def test_an_empty_result_says_so() -> None:
    sent = sendable([ASK, calling("a"), result("a", "")])
    assert sent[2].content == "(no output)"
    assert problem(sent) is None


def test_parts_are_something() -> None:
    picture = Message(USER, parts=[{"type": "image_url"}])  # type: ignore[arg-type]
    assert problem(sendable([picture])) is None


def test_partial_text_stays() -> None:
    partial = Message(ASSISTANT, "I was", status=INTERRUPTED)
    assert sendable(repaired([ASK, partial, ASK])) == [ASK, partial, ASK]


@pytest.mark.parametrize("arguments", [None, [1], "x", {"x": {1}}])
def test_distinct_makes_objects_of_arguments(arguments: Any) -> None:
    message = Message(ASSISTANT, tool_calls=[ToolCall("a", "f", arguments)])
    fixed = distinct(message)
    assert problem([ASK, fixed, result("a")]) is None
    assert distinct(fixed) is fixed


def test_turns_begin_with_what_a_person_wrote() -> None:
    summary = Message(USER, "earlier: x", kind=SUMMARY)
    marked = Message(USER, "dropped", mark="sliding_window")
    forged = Message(USER, "[compacted:summary] x")
    messages = [SAID, summary, ASK, calling("a"), result("a"), marked, DONE, forged, DONE]
    assert turns(messages) == [range(2, 7), range(7, 9)]
    assert steps(messages) == [range(3, 5), range(6, 7), range(8, 9)]
    assert steps(messages, start=5) == [range(6, 7), range(8, 9)]
    assert last_prompt(messages) == 7
    assert is_prompt(forged)
    assert not is_prompt(summary)
    assert system_end(messages) == 1
    assert legal_cuts(messages) == [1, 2, 3, 5, 6, 7, 8]


def test_no_prompt_no_turn() -> None:
    assert last_prompt([SAID, DONE]) is None
    assert turns([SAID, DONE]) == []


@RULES
@given(any_list)
def test_a_request_of_any_list_is_one_that_a_provider_takes(messages):
    sent = request(messages)
    assert not any(m.role != SYSTEM for m in sent) or problem(sent) is None


@RULES
@given(valid_lists())
def test_a_request_of_a_valid_list_is_the_list(messages):
    assert request(messages) == sendable(messages)


def test_blank_text_parts_are_not_sent() -> None:
    blank, image = {"type": "text", "text": " "}, {"type": "image", "id": 1}
    stored = [ASK, DONE, Message(USER, parts=(blank,)), Message(USER, parts=(blank, image))]
    assert problem(stored) == "message 2 (user): empty"
    assert problem([Message(USER, parts=(blank, image))]) == "message 0 (user): an empty text part"
    assert sendable(stored) == [ASK, DONE, Message(USER, parts=(image,))]
    assert problem(request(stored)) is None


def test_a_stored_prompt_of_a_blank_part_is_mended() -> None:
    stored = [Message(USER, parts=({"type": "text", "text": ""},)), DONE, ASK]
    sent = request(stored)
    assert problem(sent) is None
    assert sent[-2:] == [DONE, ASK]
