"""Join the deltas of a finished stream."""

from collections.abc import Iterable

from spass.models.types import ChatDelta, ChatReply, ReplyBuilder


def collect_deltas(deltas: Iterable[ChatDelta]) -> ChatReply:
    builder = ReplyBuilder()
    for delta in deltas:
        builder.add(delta)
    return builder.reply
