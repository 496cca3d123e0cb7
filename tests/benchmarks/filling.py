"""Long chats, made without a turn for each of their messages."""

from __future__ import annotations

from django.db import transaction

from nexo_django.messages import Message as Value
from nexo_django.models import Chat, Message
from nexo_django.tokens import RULER, estimate_message


def fill(instance_id: str, count: int) -> None:
    """Give a chat of the agent "Benchmark" that many more messages, as turns would store them."""
    with transaction.atomic():
        ours = Chat.objects.get(agent_name="Benchmark", instance_id=instance_id)
        first = ours.next_position
        Message._base_manager.bulk_create(
            Message(
                chat=ours,
                position=first + n,
                role=role(n),
                content=f"message {first + n}",
                token_count=estimate_message(Value(role(n), f"message {first + n}")),
                token_ruler=RULER,
            )
            for n in range(count)
        )
        Chat.objects.filter(pk=ours.pk).update(next_position=first + count)


def role(number: int) -> str:
    """Give the role of one of the messages: prompts and answers alternate."""
    return "assistant" if number % 2 else "user"
