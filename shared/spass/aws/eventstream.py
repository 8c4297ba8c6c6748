"""Decode the binary event streams of AWS services (application/vnd.amazon.eventstream), with botocore."""

import struct
from typing import NamedTuple

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError


class StreamMessage(NamedTuple):
    """One message. If it ``failed``, ``name`` is the exception's name and ``payload`` its content."""

    name: str
    payload: bytes
    failed: bool = False


class BrokenEventStream(Exception):
    """The bytes are not an event stream, or were damaged in transit."""


class EventStreamDecoder:
    """Decode messages from chunks of bytes, which may split a message anywhere."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()

    def feed(self, chunk: bytes) -> list[StreamMessage]:
        """Return the messages that ``chunk`` completes. Raise ``BrokenEventStream`` if a checksum or a length is wrong."""
        self._buffer.add_data(chunk)
        try:
            return [_message(message) for message in self._buffer]
        except (ParserError, struct.error, UnicodeDecodeError, LookupError) as error:
            raise BrokenEventStream from error


def _message(message: EventStreamMessage) -> StreamMessage:
    headers = message.to_response_dict()["headers"]

    def header(name: str) -> str:
        return str(headers.get(name, ""))

    match header(":message-type"):
        case "exception":
            return StreamMessage(header(":exception-type"), message.payload, failed=True)
        case "error":  # an error that the service's model does not define: its text is in a header
            return StreamMessage(header(":error-code"), header(":error-message").encode(), failed=True)
        case _:
            return StreamMessage(header(":event-type"), message.payload)
