"""Keep the gateway at full load for half an hour and watch its memory, open files, threads and tasks.

    python -m bench.soak [--minutes N] [--connections N]

The requests are those of ``bench.versions``: chats whole and streamed, with server tools, an agent's turns without a session,
with a tool and in a session. Beside them, clients leave in the middle of streams. The table is an emulated DynamoDB of this
machine. After each twentieth of the time the load stops for a moment, and the gateway's figures are read. They grow while caches
fill, so the last quarter is compared with the second one.
"""

import argparse
import asyncio
import gc
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from bench import gateway
from bench.load import CHAT, LoadProfile, Target, request_body
from bench.processes import TOKEN, emulated_aws, served, write_config
from bench.versions import KINDS, burst

READINGS: Final = 20
MORE_MEMORY: Final = 1.03
"""The memory of the last quarter, at most so many times that of the second."""
MORE_OF_ANYTHING: Final = 4
"""Files, threads or tasks that the last quarter may have more than the second."""
_FIGURES: Final = "/bench/figures"
_AT_REST_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a gateway holds while no request is in progress; memory is in MiB."""

    memory: float
    files: int
    threads: int
    tasks: int


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the gateway, and under one more path what its process holds."""
    if scope["type"] == "http" and scope["path"] == _FIGURES:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(asdict(_held())).encode()})
    else:
        await gateway.app(scope, receive, send)


def _held() -> Figures:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Figures(
        memory=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        files=len(list(Path("/proc/self/fd").iterdir())),
        threads=threading.active_count(),
        tasks=len(asyncio.all_tasks()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--connections", type=int, default=16, help="concurrent connections (default 16)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(served("bench.upstream:upstream", {"PAUSE": "0"}))
        environment = stack.enter_context(emulated_aws()) | write_config(folder, upstream.base, with_tools=True)
        target = Target(
            "gateway", stack.enter_context(served("bench.soak:app", environment)), {"Authorization": f"Bearer {TOKEN}"}
        )
        print(f"{'minute':>7} {'requests':>9} {'MiB':>8} {'files':>6} {'threads':>8} {'tasks':>6}", flush=True)
        read = [_reading(target, options.minutes, number, options.connections) for number in range(1, READINGS + 1)]
        report(read)


def report(read: Sequence[Figures]) -> None:
    """Say for each figure if its largest value in the last quarter exceeds that in the second; exit with 1 if one does."""
    quarter = len(read) // 4
    second, last = read[quarter : 2 * quarter], read[-quarter:]
    grown = False
    for name in ("memory", "files", "threads", "tasks"):
        before, after = (max(getattr(figures, name) for figures in part) for part in (second, last))
        limit = before * MORE_MEMORY if name == "memory" else before + MORE_OF_ANYTHING
        grown = grown or after > limit
        said = "NOT met" if after > limit else "met"
        print(f"{name}: at most {before:.0f} in the second quarter, {after:.0f} in the last: {said}")
    if grown:
        raise SystemExit(1)


def _reading(target: Target, minutes: float, number: int, connections: int) -> Figures:
    """Load the gateway for one reading's share of the time, then read what it holds."""
    end = time.monotonic() + minutes * 60 / READINGS
    # A session has one turn at a time.
    loads = [kind if kind.work.path == "" else replace(kind, connections=connections) for kind in KINDS]
    while time.monotonic() < end:
        for kind in loads:
            burst(target, kind, 20 * connections)
        asyncio.run(_leave_streams(target, connections))
    time.sleep(_AT_REST_SECONDS)
    with urllib.request.urlopen(target.served.base + _FIGURES) as response:
        figures = Figures(**json.load(response))
    requests = sum(target.figures[kind].requests for kind in loads)
    row = f"{figures.memory:8.1f} {figures.files:6} {figures.threads:8} {figures.tasks:6}"
    print(f"{minutes * number / READINGS:7.1f} {requests:9,} {row}", flush=True)
    return figures


async def _leave_streams(target: Target, connections: int) -> None:
    """Begin a stream over each connection and close it after the first bytes."""
    host, port = target.served.base.removeprefix("http://").split(":")
    body = request_body(LoadProfile(streaming=True, connections=connections))
    headers = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(body)), **target.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    asked = f"POST {CHAT.path} HTTP/1.1\r\n{head}\r\n".encode() + body

    async def leave() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(asked)
        await reader.read(1)
        writer.close()

    await asyncio.gather(*(leave() for _ in range(connections)))


if __name__ == "__main__":
    main()
