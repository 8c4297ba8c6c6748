"""Build event streams in the format of AWS (https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html)."""

import json
import struct
from binascii import crc32
from typing import Final

from spass.core.messages import Json

_STRING: Final = b"\x07"  # the type of a header value
_OVERHEAD: Final = 16  # bytes of the two lengths and the two checksums


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message: two lengths, their checksum, the headers, the payload, and a checksum of all that."""
    header_bytes = b"".join(
        bytes([len(name)]) + name.encode() + _STRING + struct.pack("!H", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", _OVERHEAD + len(header_bytes) + len(payload), len(header_bytes))
    message = prelude + struct.pack("!I", crc32(prelude)) + header_bytes + payload
    return message + struct.pack("!I", crc32(message))


def event(name: str, payload: Json) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(payload, ensure_ascii=False).encode())


def exception(name: str, payload: Json) -> bytes:
    return frame({":exception-type": name, ":message-type": "exception"}, json.dumps(payload).encode())
