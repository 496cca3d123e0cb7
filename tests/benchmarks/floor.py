"""The floor: what bare Django costs for the same rows."""

from __future__ import annotations

from django.db import connection, models

from tests.benchmarks.filling import role


class FloorChat(models.Model):
    class Meta:
        app_label = "floor"
        db_table = "floor_chat"


class FloorMessage(models.Model):
    chat = models.ForeignKey(FloorChat, models.CASCADE, related_name="messages")
    position = models.PositiveBigIntegerField()
    role = models.CharField(max_length=9)
    content = models.TextField()

    class Meta:
        app_label = "floor"
        db_table = "floor_message"
        constraints = (
            models.UniqueConstraint(fields=("chat", "position"), name="floor_message_position"),
        )


def create() -> None:
    """Make the floor's tables."""
    with connection.schema_editor() as editor:
        editor.create_model(FloorChat)
        editor.create_model(FloorMessage)


def chat(size: int) -> FloorChat:
    """Make a chat with that many messages."""
    made = FloorChat.objects.create()
    FloorMessage.objects.bulk_create(
        FloorMessage(chat=made, position=n, role=role(n), content=f"message {n}")
        for n in range(size)
    )
    return made


def turn(chat: FloorChat, text: str) -> None:
    """Do what a turn must: read the messages, write the question and the answer."""
    chat = FloorChat.objects.get(pk=chat.pk)
    messages = list(chat.messages.order_by("position"))
    position = messages[-1].position + 1
    FloorMessage.objects.create(chat=chat, position=position, role="user", content=text)
    FloorMessage.objects.create(
        chat=chat, position=position + 1, role="assistant", content="an answer"
    )
