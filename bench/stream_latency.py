"""The time from a provider's first token to the client's, over sockets: with the journal, without it, and of a chat completion.

The upstream writes the time into its first token, and the client subtracts it: all processes of a machine share the monotonic
clock. So the time contains neither the calls before the model nor the emulated AWS that answers them.
"""

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.processes import TOKEN, USER, emulated_aws, served, write_config
from bench.stream_gateway import JOURNAL_OFF

MAX_JOURNAL_MS: Final = 2.0
MAX_CHAT_MS: Final = 5.0
COMPLETION: Final = "a chat completion"
UNJOURNALED: Final = "a chat without the journal"
JOURNALED: Final = "a chat with the journal"
A1: Final = "a chat of /a1, which has no journal"
_STAMP: Final = re.compile(rb"at (\d+\.\d+) ")
_END: Final = b"\r\n0\r\n\r\n"
_QUESTION: Final = "What is two and two?"


@dataclass(slots=True)
class StreamKind:
    """A kind of stream, and the measured times in milliseconds. ``body`` has another ``message_id`` for each request."""

    name: str
    path: str
    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict)
    first_tokens: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.first_tokens)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.first_tokens, n=100, method="inclusive")[98]


def kinds() -> list[StreamKind]:
    messages = [{"role": "user", "content": _QUESTION}]
    completion = {"model": "bench-model", "messages": messages, "stream": True}
    chat: dict[str, object] = {"message_id": "", "messages": messages}
    return [
        StreamKind(COMPLETION, "/v1/chat/completions", completion),
        StreamKind(A1, "/a1/agents/bench/chat", {"message": _QUESTION, "stream": True}),
        StreamKind(UNJOURNALED, "/c1/agents/bench/chat", chat, JOURNAL_OFF),
        StreamKind(JOURNALED, "/c1/agents/bench/chat", chat),
    ]


async def first_tokens(base: str, measured: list[StreamKind], requests: int, rounds: int) -> None:
    """Send ``requests`` of each kind over one connection, in rounds that alternate between the kinds."""
    address = urlsplit(base).netloc
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    numbers = count()
    for number in range(rounds + 1):
        for kind in measured:
            for _ in range(requests // rounds):
                writer.write(_request(address, kind, next(numbers)))
                milliseconds = await _read_first_token(reader)
                if number:  # the first round warms up
                    kind.first_tokens.append(milliseconds)
    writer.close()


def _request(address: str, kind: StreamKind, number: int) -> bytes:
    names = {"message_id": f"m-{number}"} if "message_id" in kind.body else {}
    body = json.dumps({**kind.body, **names}).encode()
    headers = {
        "Host": address,
        "Authorization": f"Bearer {TOKEN}",
        "SPASS-User-Id": USER,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **kind.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {kind.path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def _read_first_token(reader: asyncio.StreamReader) -> float:
    """Read one answer. Return the milliseconds from the time in its first token to the arrival of that token."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise SystemExit(f"the gateway answered {head[:300]!r} {await reader.read(1000)!r}")
    body, milliseconds = b"", -1.0
    while not body.endswith(_END):
        piece = await reader.read(65536)
        now = time.monotonic()
        if not piece:
            raise SystemExit(f"the gateway broke off: {body[-300:]!r}")
        body += piece
        if milliseconds < 0 and (stamp := _STAMP.search(body)):
            milliseconds = 1000 * (now - float(stamp[1]))
    if milliseconds < 0:
        raise SystemExit(f"the gateway said something else: {body[:500]!r}")
    return milliseconds


def report(measured: list[StreamKind]) -> Iterator[str]:
    medians = {kind.name: kind.median for kind in measured}
    yield f"from the provider's first token to the client's, {len(measured[0].first_tokens)} streams of each kind in one run"
    for kind in measured:
        yield f"  {kind.name:38} {kind.median:6.2f} ms at the median, {kind.p99:6.2f} at the 99th percentile"
    journal = medians[JOURNALED] - medians[UNJOURNALED]
    added = medians[JOURNALED] - medians[COMPLETION]
    yield f"the journal adds {journal:+.2f} ms (to reach: {MAX_JOURNAL_MS}): {_met(journal < MAX_JOURNAL_MS)}"
    yield f"/c1 adds {added:+.2f} ms to /v1 (to reach: {MAX_CHAT_MS}): {_met(added < MAX_CHAT_MS)}"


def _met(is_met: bool) -> str:
    return "met" if is_met else "NOT met"


def measure(requests: int, rounds: int) -> None:
    """Print the figures of a gateway with an instant model and an emulated AWS."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(served("bench.upstream:upstream", {"STAMP": "1"}))
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream.base)
        gateway = stack.enter_context(served("bench.stream_gateway:app", environment))
        measured = kinds()
        asyncio.run(first_tokens(gateway.base, measured, requests, rounds))
    for line in report(measured):
        print(line)
