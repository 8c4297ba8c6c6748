"""A server that answers as a DynamoDB at its worst: it closes, is silent, sends half an answer, errors or damaged bytes."""

import asyncio
import json
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer. ``checksum`` and ``date`` become headers. ``sent`` limits the bytes of the body that are sent."""

    content: Mapping[str, Any] | bytes = field(default_factory=dict)
    status: int = 200
    checksum: int | None = None
    date: str | None = None
    sent: int | None = None
    closes: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        body = self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()
        checksum = zlib.crc32(body) if self.checksum is None else self.checksum
        headers = {"content-length": str(len(body)), "x-amz-crc32": str(checksum), **self.headers}
        if self.date:
            headers["date"] = self.date
        if self.closes:
            headers["connection"] = "close"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} Whatever\r\n{head}\r\n".encode() + body[: self.sent]


def refusal(code: str, status: int = 400, **fields: Any) -> Response:
    return Response({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no", **fields}, status)


CLOSE: Final = b"close"
"""Close the connection without an answer."""
SILENCE: Final = b"silence"
"""Never answer."""
DRIP: Final = b"drip"
"""Send the head of an answer and then a byte now and then, without end."""
Action: TypeAlias = Response | bytes
"""A response, bytes that are sent as they are before the connection closes, ``CLOSE``, ``SILENCE`` or ``DRIP``."""


@dataclass(slots=True)
class Request:
    headers: Mapping[str, str]
    body: dict[str, Any]
    connection: int


@dataclass(slots=True)
class DynamoDBServer:
    """``actions`` are for one request each, in order; ``default`` is for all later ones."""

    actions: list[Action] = field(default_factory=list)
    default: Action = field(default_factory=Response)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    delay: float = 0.0
    url: str = ""
    closes_after_answer: bool = False
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        number = self.connections
        self.writers.add(writer)
        try:
            while await self._answer(reader, writer, number):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self.writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Answer one request. Return False to close the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(Request(headers, json.loads(body), connection))
        action = self.actions.pop(0) if self.actions else self.default
        await asyncio.sleep(self.delay)
        if action == CLOSE:
            return False
        if action == SILENCE:
            await reader.read()
            return False
        if action == DRIP:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not reader.at_eof() and not writer.is_closing():
                writer.write(b" ")
                await asyncio.sleep(0.1)
            return False
        writer.write(action if isinstance(action, bytes) else action.encode())
        await writer.drain()
        return isinstance(action, Response) and action.sent is None and not action.closes and not self.closes_after_answer


@asynccontextmanager
async def dynamodb_server(
    actions: Sequence[Action] = (), *, context: ssl.SSLContext | None = None
) -> AsyncIterator[DynamoDBServer]:
    """Serve until the block ends."""
    server = DynamoDBServer(list(actions))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context, limit=2**25)
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:  # boto3 leaves some connections open
            writer.transport.abort()
        while server.open:
            await asyncio.sleep(0.005)
