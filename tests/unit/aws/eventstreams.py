"""Build event streams in the format of AWS (https://docs.aws.amazon.com/transcribe/latest/dg/event-stream.html)."""

import json
import struct
from binascii import crc32

from spass.core.messages import Json


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message: its lengths, their checksum, the headers, the payload, and the checksum of all of it."""
    written = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(written) + len(payload), len(written))
    message = prelude + struct.pack("!I", crc32(prelude)) + written + payload
    return message + struct.pack("!I", crc32(message))


def event(name: str, payload: Json) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(payload, ensure_ascii=False).encode())


def exception(name: str, payload: Json) -> bytes:
    return frame({":exception-type": name, ":message-type": "exception"}, json.dumps(payload).encode())
