"""What the package announces, after the commit; a receiver that fails does not fail the turn."""

from __future__ import annotations

from django.dispatch import Signal

# sender: the Message model; message: the row. After its transaction committed.
message_saved = Signal()
# sender: the Agent class; session, turn: its number, key.
turn_started = Signal()
# sender: the Agent class; session, turn, status, usage, error: the error's class name or "".
turn_finished = Signal()
# sender: the Agent class; session, turn, key, and the event's payload with `removed`, the
# messages that left the view, and `change`.
compacted = Signal()
# sender: the Agent class; session, turn, key, and the event's payload. After the turn stopped
# and gave the session back; once for each call.
approval_requested = Signal()
question_asked = Signal()
# sender: the Agent class, None where it is not registered; agent_name, instance_id, call: the
# PendingCall as it was, decision. The turn goes on when somebody continues it.
call_decided = Signal()
# sender: the Agent class; session, turn, key, and the event's payload.
truncated = Signal()
