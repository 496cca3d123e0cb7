"""What holds of every conversation, target and policy: the invariants of compaction."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexo_django.compaction import CompactionPipeline, SlidingWindow, Summarize, ToolResults, ladder
from nexo_django.compaction.change import Change
from nexo_django.messages import NOTICE, SUMMARY, SYSTEM, TOOL, USER, Message, Usage
from nexo_django.tokens import Approximate
from nexo_django.transcript import last_prompt, problem, sendable, steps
from tests.compaction.conversations import CONVERSATIONS, Summariser
from tests.fuzz import examples

COUNTER = Approximate()
SHARES = st.floats(0.0, 1.1)
KEEP = st.integers(1, 3)
ANSWERS = st.sampled_from(["", "short", "long " * 3000, ValueError("down")])
SETTINGS = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def target_of(messages: list[Message], share: float) -> int:
    return max(1, int(COUNTER.count(messages) * share))


def policies(keep_steps: int, *answers) -> list[CompactionPipeline]:
    return [
        ladder(None, keep_steps),
        ladder(Summariser(*answers), keep_steps),
        CompactionPipeline().use(ToolResults, keep_steps=keep_steps),
        CompactionPipeline().use(SlidingWindow, keep_steps=keep_steps),
        CompactionPipeline().run(Summarize(Summariser(*answers), keep_steps=keep_steps)),
    ]


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP, ANSWERS)
def test_what_comes_out_is_a_valid_request(messages, share, keep_steps, answer):
    assert problem(sendable(messages)) is None
    for policy in policies(keep_steps, answer):
        done = policy.attempt(messages, target_of(messages, share))
        assert problem(sendable(done.messages)) is None


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP, ANSWERS)
def test_the_input_stays_as_it_is_and_nothing_grows(messages, share, keep_steps, answer):
    before = [m.to_dict() for m in messages]
    for policy in policies(keep_steps, answer):
        done = policy.attempt(messages, target_of(messages, share))
        assert [m.to_dict() for m in messages] == before
        assert done.after <= done.before == COUNTER.count(messages)
        assert done.after == COUNTER.count(done.messages)
        assert done.changed is (done.after < done.before)
        assert done.changed or done.messages == messages


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_the_system_the_prompt_and_the_newest_steps_survive(messages, share, keep_steps):
    prompt = messages[last_prompt(messages)]
    newest = steps(messages, last_prompt(messages))[-1:]
    for policy in policies(keep_steps):
        left = policy.attempt(messages, target_of(messages, share)).messages
        assert [m for m in left if m.role == SYSTEM] == [m for m in messages if m.role == SYSTEM]
        assert left.count(prompt) >= 1
        assert all(messages[i] in left for step in newest for i in step)


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_the_target_is_reached_or_nothing_more_can_go(messages, share, keep_steps):
    for paid in (False, True):
        policy = ladder(Summariser() if paid else None, keep_steps)
        done = policy.attempt(messages, target_of(messages, share))
        assert done.reached is (done.after <= done.target)
        assert done.floor <= done.after
        if done.reached:
            continue
        # A note takes some tokens too, and a summary more: what is smaller than one stays.
        older = steps(done.messages, last_prompt(done.messages))[:-keep_steps]
        spare = [done.messages[index] for step in older for index in step]
        assert not spare or COUNTER.count(spare) <= 100
        earlier = done.messages[: last_prompt(done.messages)]
        turns = [m for m in earlier if m.kind == "normal" and m.role != SYSTEM]
        assert not turns or COUNTER.count(turns) <= 60


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_it_changes_nothing_the_second_time(messages, share, keep_steps):
    target = target_of(messages, share)
    for policy in policies(keep_steps):
        smaller = policy.compact(messages, target)
        assert policy.compact(smaller or messages, target) is None


@SETTINGS
@given(CONVERSATIONS, KEEP)
def test_below_the_target_no_layer_does_anything(messages, keep_steps):
    called: list = []
    stack = CompactionPipeline().use(ToolResults).use(SlidingWindow).run(called.append)
    assert stack.compact(messages, COUNTER.count(messages)) is None
    assert called == []


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_a_layer_that_reached_the_target_does_not_call_the_next(messages, share, keep_steps):
    called: list = []

    def spy(env) -> None:
        called.append(env.count(env.conversation) > env.target)

    stack = CompactionPipeline().use(ToolResults, keep_steps=keep_steps)
    stack.use(SlidingWindow, keep_steps=keep_steps).run(spy)
    done = stack.attempt(messages, target_of(messages, share))
    assert called == ([] if done.reached else [True])


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_the_order_is_kept_and_a_group_never_parted(messages, share, keep_steps):
    for policy in policies(keep_steps):
        left = policy.attempt(messages, target_of(messages, share)).messages
        kept = [m for m in left if m.position is not None]
        positions = [m.position for m in kept]
        assert positions == sorted(set(positions))
        assert all(messages[m.position].tool_call_id == m.tool_call_id for m in kept)
        for step in steps(messages):
            shown = {m.position for m in kept} & set(step)
            assert shown in (set(), set(step))


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_earlier_summaries_are_shown_or_told_to_the_summariser(messages, share, keep_steps):
    old = [m for m in messages if m.kind == SUMMARY]
    summariser = Summariser()
    paid = ladder(summariser, keep_steps).attempt(messages, target_of(messages, share)).messages
    free = ladder(None, keep_steps).attempt(messages, target_of(messages, share)).messages
    assert all(m in free for m in old)
    assert all(m in paid or m.content[:100] in summariser.read for m in old)


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_nothing_is_lost_before_the_paid_layer_was_asked(messages, share, keep_steps):
    summariser = Summariser()
    left = ladder(summariser, keep_steps).attempt(messages, target_of(messages, share)).messages
    shown = {m.position for m in left}
    for message in messages:
        if message.position not in shown and message.kind != NOTICE:
            assert message.role in summariser.read
            assert (message.content or "").strip()[:30] in summariser.read


@SETTINGS
@given(CONVERSATIONS, SHARES, st.integers(600, 20_000))
def test_the_summarisers_input_is_bounded_and_without_tools(messages, share, tokens):
    summariser = Summariser()
    stack = CompactionPipeline().use(SlidingWindow)
    stack.run(Summarize(summariser, input_tokens=max(tokens, 2000)))
    stack.compact(messages, target_of(messages, share))
    for env, asked in zip(summariser.envs, summariser.asked, strict=True):
        assert env.tools == []
        assert COUNTER.count(asked) <= max(tokens, 2000) + target_of(messages, share) // 4 + 500


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP, ANSWERS)
def test_a_failure_keeps_everything_while_it_fits(messages, share, keep_steps, answer):
    policy = ladder(Summariser(*[answer] * 9), keep_steps)
    done = policy.attempt(messages, target_of(messages, share), limit=10_000_000)
    if done.failures:
        assert len(done.messages) == len(messages)
        assert set(done.layers) <= {"tool_results"}


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_what_must_stay_is_cut_only_to_fit_the_limit(messages, share, keep_steps):
    limit = target_of(messages, share)
    done = ladder(None, keep_steps).attempt(messages, limit // 2 + 1, limit=limit)
    if "clipped" in done.layers:
        assert done.applied[-1].before > limit
    assert problem(sendable(done.messages)) is None
    users = [m for m in messages if m.role == USER]
    assert all(m in users for m in done.messages if m.role == USER and m.kind == "normal")


@SETTINGS
@given(CONVERSATIONS, SHARES, KEEP)
def test_the_change_tells_where_every_message_went(messages, share, keep_steps):
    for policy in policies(keep_steps):
        done = policy.attempt(messages, target_of(messages, share))
        change = Change(
            before=tuple(messages),
            view=tuple(done.messages),
            trigger="threshold",
            layers=done.layers,
            context=done.before,
            tokens_before=done.before,
            tokens_after=done.after,
            target=done.target,
            reached=done.reached,
            floor=done.floor,
            usage=Usage(),
        )
        shown = {m.position for m in done.messages if m.position is not None}
        assert {m.position for m in change.removed} == {m.position for m in messages} - shown
        assert all(m.position is None and m.kind != "normal" for m in change.added)
        assert all(old.position == new.position for old, new in change.rewritten)
        assert rebuilt(messages, change) == done.messages


def rebuilt(stored: list[Message], change: Change) -> list[Message]:
    """Build the view as a store does: from rows, rewrites, the front and the boundary."""
    system = [m for m in stored if m.role == SYSTEM]
    first, front = change.first_kept_position, {m.position for m in change.front}
    rows = [m for m in stored if m.position >= first and m.role != SYSTEM]
    shown = [change.rewrites.get(m.position, m) for m in rows if m.position not in front]
    return [*system, *change.front, *(m for m in shown if m is not None)]


@SETTINGS
@given(CONVERSATIONS, SHARES)
def test_what_is_left_is_empty_nowhere(messages, share):
    left = ladder(Summariser()).attempt(messages, target_of(messages, share)).messages
    assert all(m.says_something for m in left if m.role != TOOL)
