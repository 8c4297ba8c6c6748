"""The binary event streams that AWS services answer with (application/vnd.amazon.eventstream), decoded by botocore."""

import struct
from typing import NamedTuple

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError


class StreamMessage(NamedTuple):
    """One message. ``failed`` says that ``name`` is an exception's, and ``payload`` what it says."""

    name: str
    payload: bytes
    failed: bool = False


class BrokenEventStream(Exception):
    """The bytes are no event stream, or were damaged on the way."""


class EventStreamDecoder:
    """Takes bytes in whatever pieces they come and gives messages as soon as they are whole."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, chunk: bytes) -> list[StreamMessage]:
        """The messages that ``chunk`` completes.

        Raises:
            BrokenEventStream: a checksum is wrong, or a length impossible.
        """
        self._buffer.add_data(chunk)
        try:
            return [_message(message) for message in self._buffer]
        except (ParserError, struct.error, UnicodeDecodeError, LookupError) as error:
            raise BrokenEventStream from error


def _message(message: EventStreamMessage) -> StreamMessage:
    headers = message.to_response_dict()["headers"]

    def said(name: str) -> str:
        return str(headers.get(name, ""))

    match said(":message-type"):
        case "exception":
            return StreamMessage(said(":exception-type"), message.payload, failed=True)
        case "error":  # one that the service's model does not name: its words stand in a header
            return StreamMessage(said(":error-code"), said(":error-message").encode(), failed=True)
        case _:
            return StreamMessage(said(":event-type"), message.payload)
