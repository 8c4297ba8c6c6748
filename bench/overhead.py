"""What the gateway adds to a chat completion, in front of an upstream that answers at once.

    python -m bench.overhead [--requests N] [--connections C]

Three targets in one interleaved run: the bare upstream, a minimal Starlette + httpx pass-through, and the gateway with
authentication, cost and audit on (the audit record goes to an emulated DynamoDB on this machine). Added latency is a target's
median less the upstream's.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.stage import TOKEN, emulated_aws, server, write_config

TO_REACH: Final = 4.0
BODY: Final = json.dumps({"model": "bench-model", "messages": [{"role": "user", "content": "What is two and two?"}]}).encode()
HEADERS: Final = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


class Target:
    """One server under load over one kept connection."""

    def __init__(self, name: str, base: str) -> None:
        self.name = name
        self.address = urlsplit(base).netloc
        self.connection = http.client.HTTPConnection(self.address)
        self.milliseconds: list[float] = []
        self.rates: list[float] = []

    def once(self) -> None:
        began = time.perf_counter()
        self.connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
        reply = self.connection.getresponse()
        body = reply.read()
        self.milliseconds.append((time.perf_counter() - began) * 1000)
        if reply.status != 200 or b"Four." not in body:
            raise SystemExit(f"{self.name} answered {reply.status}: {body[:300]!r}")

    def burst(self, requests: int, connections: int) -> None:
        began = time.perf_counter()
        asyncio.run(_burst(self.address, requests, connections))
        self.rates.append(requests / (time.perf_counter() - began))


async def _burst(address: str, requests: int, connections: int) -> None:
    host, port = address.split(":")
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    sent = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY

    async def drive(count: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(count):
            writer.write(sent)
            status = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in status.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].split(b":")[1]))
            if b" 200 " not in status.split(b"\r\n")[0]:
                raise SystemExit(f"{address} answered {status[:200]!r}")
        writer.close()

    await asyncio.gather(*(drive(requests // connections) for _ in range(connections)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="requests to each target, one at a time (default 400)")
    parser.add_argument("--connections", type=int, default=8, help="connections of the throughput bursts (default 8)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(server("bench.upstream:upstream", {}))
        passthrough = stack.enter_context(server("bench.upstream:passthrough", {"UPSTREAM": upstream}))
        environment: Mapping[str, str] = stack.enter_context(emulated_aws()) | write_config(folder, upstream)
        gateway = stack.enter_context(server("bench.gateway:app", environment))
        targets = [Target("upstream", upstream), Target("pass-through", passthrough), Target("gateway", gateway)]
        for target in targets:
            for _ in range(30):
                target.once()
            target.milliseconds.clear()
        for _ in range(options.requests):
            for target in targets:
                target.once()
        for _ in range(5):
            for target in targets:
                target.burst(400, options.connections)
    report(targets)


def report(targets: list[Target]) -> None:
    bare = statistics.median(targets[0].milliseconds)
    print(f"{'target':14} {'p50 ms':>8} {'p99 ms':>8} {'added p50':>10} {'requests/s':>11}")
    for target in targets:
        p50 = statistics.median(target.milliseconds)
        p99 = statistics.quantiles(target.milliseconds, n=100)[98]
        print(f"{target.name:14} {p50:8.2f} {p99:8.2f} {p50 - bare:10.2f} {statistics.median(target.rates):11.0f}")
    added = [statistics.median(target.milliseconds) - bare for target in targets[1:]]
    print(f"\nthe gateway adds {added[1] / added[0]:.2f} times what the pass-through adds (to reach: under {TO_REACH:.0f})")


if __name__ == "__main__":
    main()
