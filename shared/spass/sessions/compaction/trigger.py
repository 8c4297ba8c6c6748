"""When a session is compacted without being asked."""

from collections.abc import Sequence
from typing import Final

from spass.calls.estimate import count_characters
from spass.core.messages import CHARACTERS_PER_TOKEN, Message
from spass.sessions.session import Session

_FULL_PERCENT: Final = 80


def should_compact(session: Session, live: Sequence[Message], message: str, context_window: int) -> bool:
    """Whether ``session`` is compacted before a turn that begins with ``message``: it wants to be, ``live`` are more messages
    than it keeps, and with the new one they probably fill more than 80 % of the model's ``context_window`` (tokens)."""
    if session.compact_strategy != "auto" or len(live) <= session.compact_keep_last_n:
        return False
    spoken = sum(map(count_characters, live)) + len(message)
    return 100 * spoken > _FULL_PERCENT * CHARACTERS_PER_TOKEN * context_window
