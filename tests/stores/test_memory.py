"""What only the store in memory promises."""

from __future__ import annotations

import gc
import threading
import uuid

import pytest

from nexo_django.exceptions import LeaseLost, StoreFailed
from nexo_django.messages import ASSISTANT, SUMMARY, SYSTEM, TOOL, USER, Message, ToolCall, Usage
from nexo_django.stores.base import TurnRequest
from nexo_django.stores.memory import MemoryChat, MemoryStore
from tests.stores.changes import change

LONG = 60


@pytest.fixture
def chat() -> MemoryChat:
    return MemoryStore().chat("Memory", uuid.uuid4().hex)


def ask(text: str = "hello", wait: float = 0) -> TurnRequest:
    return TurnRequest(Message(USER, text), wait=wait)


def test_every_instance_gives_the_same_chats(chat: MemoryChat) -> None:
    chat.begin(ask()).close()
    again = MemoryStore().chat(*chat.name)
    assert [m.content for m in again.view()] == ["hello"]
    assert MemoryStore.durable is False


def test_reset_forgets_and_takes_the_leases(chat: MemoryChat) -> None:
    turn = chat.begin(ask())
    MemoryStore.reset()
    assert not chat.exists()
    with pytest.raises(LeaseLost):
        turn.append(Message(ASSISTANT, "hi"))
    chat.begin(ask()).close()


def test_a_dropped_turn_frees_its_chat(chat: MemoryChat) -> None:
    turn = chat.begin(ask())
    del turn
    gc.collect()
    chat.begin(ask("next")).close()


def test_values_given_out_are_not_the_stores(chat: MemoryChat) -> None:
    turn = chat.begin(ask())
    given = {"list": [1]}
    message = Message(ASSISTANT, None, tool_calls=(ToolCall("c", "look", given),))
    stored = turn.append(message)
    given["list"].append(2)
    stored.calls[0].arguments["list"].append(3)
    chat.view()[1].calls[0].arguments.clear()
    next(m for m in chat.history() if m.calls).calls[0].arguments.clear()
    turn.close()
    taken = chat.begin(TurnRequest(None, wait=0))
    assert taken.messages[1].calls[0].arguments == {"list": [1]}
    taken.messages[1].calls[0].arguments.clear()
    assert chat.view()[1].calls[0].arguments == {"list": [1]}
    taken.close()


def test_a_call_has_one_result(chat: MemoryChat) -> None:
    turn = chat.begin(ask())
    turn.append(Message(ASSISTANT, None, tool_calls=(ToolCall("c", "look"),)))
    turn.append(Message(TOOL, "once", tool_call_id="c"))
    with pytest.raises(StoreFailed):
        turn.append(Message(TOOL, "twice", tool_call_id="c"))
    assert [m.content for m in chat.history() if m.role == TOOL] == ["once"]
    turn.close()


def test_the_system_message_is_kept_and_replaced(chat: MemoryChat) -> None:
    turn = chat.begin(ask())
    turn.set_system("Be kind.")
    turn.set_system("Be brief.")
    turn.close()
    for messages in (chat.view(), list(chat.history())):
        assert [(m.role, m.content) for m in messages] == [(SYSTEM, "Be brief."), (USER, "hello")]


def test_compacting_keeps_the_history(chat: MemoryChat) -> None:
    turn = chat.begin(ask("one"))
    turn.append(Message(ASSISTANT, "1"))
    turn.close()
    turn = chat.begin(ask("two"))
    first = Message(USER, "so far", kind=SUMMARY, usage=Usage(input=7))
    told = change(chat.view(), first, Message(USER, "two"), usage=Usage(input=7))
    assert turn.compacted(told) == [first, Message(USER, "two")]
    turn.append(Message(ASSISTANT, "2", usage=Usage(input=3)))
    second = Message(USER, "all of it", kind=SUMMARY)
    turn.compacted(change(chat.view(), first, second, Message(USER, "two")))
    turn.close()
    assert [m.content for m in chat.view()] == ["so far", "all of it", "two"]
    texts = ["one", "1", "two", "so far", "2", "all of it"]
    assert [m.content for m in chat.history()] == texts
    assert [m.position for m in chat.history()] == list(range(1, 7))
    assert chat.usage().input == turn.usage.input == 10


def test_many_threads_take_their_turns(chat: MemoryChat) -> None:
    failed: list[BaseException] = []

    def talk(name: int) -> None:
        try:
            for n in range(20):
                turn = chat.begin(ask(f"{name}.{n}", wait=LONG))
                turn.append(Message(ASSISTANT, f"answer {name}.{n}"))
                turn.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert failed == []
    texts = [m.content for m in chat.history()]
    assert len(texts) == 320
    assert texts[1::2] == [f"answer {text}" for text in texts[::2]]
