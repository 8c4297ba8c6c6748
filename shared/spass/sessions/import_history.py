"""The history that a client brings to a new session, stored as its first turn."""

from collections.abc import Iterator, Sequence

from spass.calls.defence import MAX_CHARACTERS, is_blank
from spass.core.effects import user
from spass.core.errors import InputRefused, InvalidRequest
from spass.core.ids import MessageId, new_id
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Timestamp
from spass.sessions.record import StoredMessage, TurnRecord


def import_messages(entries: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages that a new session stores for ``entries``, in order.

    A tool's answer has no recorded call, and providers refuse an answer without its call. So it becomes a user message that
    is marked as data: the input defence shows it to a model as looked-up text and never as the user's words. Entries without a
    visible character are left out, because no model would accept them.

    Raises:
        InvalidRequest: an entry has another role than user, assistant and tool.
        InputRefused: an entry is longer than a model's input may be.
    """
    return tuple(_import_all(entries))


def import_turn(messages: Sequence[Message], at: Timestamp) -> TurnRecord:
    """Return imported messages (at least one) as the first turn of a session."""
    stored = (StoredMessage(MessageId(new_id("msg")), seq, at, message) for seq, message in enumerate(messages, 1))
    return TurnRecord(new_id("turn"), tuple(stored), TokenUsage(), 0, FinishReason.STOP)


def _import_all(entries: Sequence[Message]) -> Iterator[Message]:
    for entry in entries:
        if entry.role is Role.SYSTEM:
            raise InvalidRequest("A chat has no entries of the role 'system'.", param="messages")
        if len(entry.content) > MAX_CHARACTERS:
            raise InputRefused(
                f"A message has more than {MAX_CHARACTERS} characters.", param="messages", details={"reason": "message_too_long"}
            )
        if is_blank(entry.content):
            continue
        if entry.role is Role.TOOL:
            call = f"the call {entry.tool_call_id}" if entry.tool_call_id else "a call"
            yield user(f"Result of {call}: {entry.content}", data=True)
        else:
            yield Message(entry.role, entry.content)
