"""Send requests to a server and measure latency, time to the first word, and the processor time of its processes."""

import asyncio
import json
import math
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.processes import RunningServer

FIRST_WORD: Final = b"Four"
_END: Final = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Work:
    """A request that a target repeats: the route and the body of a request that is not a stream."""

    name: str
    path: str
    body: Mapping[str, object] = field(hash=False)
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)


CHAT: Final = Work(
    "chat",
    "/v1/chat/completions",
    {"model": "bench-model", "messages": [{"role": "user", "content": "What is two and two?"}]},
)


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """The kind of requests: whole answers or streams, and the number of concurrent connections."""

    streaming: bool
    connections: int
    work: Work = CHAT

    def __str__(self) -> str:
        return f"{'streaming' if self.streaming else 'blocking'}, {self.connections} connection{'s' * (self.connections > 1)}"


@dataclass(slots=True)
class LoadResult:
    """Measurements of requests of one kind: latencies in milliseconds, processor time in seconds."""

    milliseconds: list[float] = field(default_factory=list)
    first_word: list[float] = field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.milliseconds)

    @property
    def processor_ms(self) -> float:
        return 1000 * self.processor_seconds / self.requests

    @property
    def per_core_second(self) -> float:
        """Return the requests per second and core; infinite if the system's clock is too coarse for the processor time."""
        return 1000 / self.processor_ms if self.processor_seconds else math.inf


@dataclass(slots=True)
class Target:
    """A server under load. ``headers`` are sent with each request."""

    name: str
    served: RunningServer
    headers: Mapping[str, str]
    figures: dict[LoadProfile, LoadResult] = field(default_factory=dict)

    def burst(self, kind: LoadProfile, requests: int) -> None:
        """Send requests over the connections of ``kind`` and return the measurements."""
        figures = self.figures.setdefault(kind, LoadResult())
        before, began = processor_seconds(self.served.pid), time.perf_counter()
        asyncio.run(self._burst(kind, requests, figures))
        figures.seconds += time.perf_counter() - began
        figures.processor_seconds += processor_seconds(self.served.pid) - before

    async def _burst(self, kind: LoadProfile, requests: int, figures: LoadResult) -> None:
        address = urlsplit(self.served.base).netloc
        body = request_body(kind)
        headers = {"Host": address, "Content-Type": "application/json", "Content-Length": str(len(body)), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **kind.work.headers}.items())
        asked = f"POST {kind.work.path} HTTP/1.1\r\n{head}\r\n".encode() + body

        async def drive(count: int) -> None:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for _ in range(count):
                began = time.perf_counter()
                writer.write(asked)
                first_word = await self._read_answer(reader)
                figures.first_word.append((first_word - began) * 1000)
                figures.milliseconds.append((time.perf_counter() - began) * 1000)
            writer.close()

        await asyncio.gather(*(drive(requests // kind.connections) for _ in range(kind.connections)))

    async def _read_answer(self, reader: asyncio.StreamReader) -> float:
        """Read one answer. Return the time of its first word."""
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(f"{self.name} answered {head[:300]!r} {await reader.read(1000)!r}")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body, seen = b"", 0.0
        while not (len(body) >= int(lengths[0].split(b":")[1]) if lengths else body.endswith(_END)):
            piece = await reader.read(65536)
            if not piece:
                raise SystemExit(f"{self.name} broke off: {body[-300:]!r}")
            body += piece
            if not seen and FIRST_WORD in body:
                seen = time.perf_counter()
        if not seen:
            raise SystemExit(f"{self.name} said something else: {body[:300]!r}")
        return seen


def request_body(kind: LoadProfile) -> bytes:
    more = {"stream": True, "stream_options": {"include_usage": True}} if kind.streaming else {}
    return json.dumps({**kind.work.body, **more}).encode()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants, including ended ones if the system counts them (Linux)."""
    if not Path("/proc/self/stat").exists():
        return _seconds_from_ps(pid)
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return _sum_below(pid, parents, used)


def _seconds_from_ps(pid: int) -> float:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,time="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    seconds = {
        int(row[0]): sum(float(part) * 60**power for power, part in enumerate(reversed(row[2].split(":")))) for row in rows
    }
    return _sum_below(pid, {int(row[0]): int(row[1]) for row in rows}, seconds)


def _sum_below(pid: int, parents: Mapping[int, int], used: Mapping[int, float]) -> float:
    children = [child for child, parent in parents.items() if parent == pid]
    return used.get(pid, 0.0) + sum(_sum_below(child, parents, used) for child in children)
