"""Measure how much one tenant's load slows another tenant down, on a gateway as ``make run`` starts it, with its emulated AWS.

    python -m bench.fair [--turns 200] [--followers 500] [--runs 100] [--files 20] [--megabytes 100]

Tenant B sends turns, a run of a managed agent and a file, one after the other and alone. Then tenant A starts its turns,
followers of a stream, runs and files, and B does the same again. Models need seconds for an answer and for each text of a file,
as real ones do: the bench measures who waits for whom. The exit status is 1 if anything of B took more than 1.3 times as long as
alone, or if A's work ended before B's.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from bench.processes import ROOT, free_port, hash_token, process
from spass.testing.model_server import Body, Completion, hashed_vector, serve_model

TO_REACH: Final = 1.3
TIMES: Final = 3
TURNS: Final = 6
MODEL_SECONDS: Final = 5.0
TEXT_SECONDS: Final = 0.06
"""For each text that is embedded."""
SLOW_SECONDS: Final = 240
"""The duration of A's turns and of its stream, which must not end before B's work."""
RUN_SECONDS: Final = 30
CHAT: Final = "/v1/chat/completions"
AGENTS: Final = "/v1/managed-agents"
STREAM: Final = "/c1/agents/fair/chat"
_CONFIG: Final = """
llm:
  backends:
    - {{name: upstream, provider: openai, base_url: {upstream}/v1, api_key_env: BENCH_KEY,
       supported_models: [fair-model, fair-embedding]}}
models:
  - {{name: fair-model, context_window: 128000}}
  - {{name: fair-embedding, kind: embedding, dimensions: 8, context_window: 8192}}
defaults: {{embedding_model: fair-embedding, compact_summary_model: fair-model}}
tenants:
  - {{id: a, tokens: [{{id: a, sha256: {a}}}]}}
  - {{id: b, tokens: [{{id: b, sha256: {b}}}]}}
"""
_AGENT: Final = "name: fair\nmodel: fair-model\ndescription: Answers late.\nsystem_prompt: Answer.\n"


def answer(body: Body) -> Completion:
    """Answer in the seconds that the last message names, with a word in each, or else as late as a model."""
    text = str(body["messages"][-1]["content"])
    _, _, seconds = text.rpartition("wait ")
    if seconds.isdigit():
        return Completion({"content": "word " * int(seconds)}, pause=1.0)
    return Completion({"content": "Done."}, pause=MODEL_SECONDS)


def embed(text: str) -> Sequence[float]:
    time.sleep(TEXT_SECONDS)
    return hashed_vector(text)


@dataclass(frozen=True, slots=True)
class Load:
    """The amount of A's work."""

    turns: int
    followers: int
    runs: int
    files: int
    megabytes: int


class Tenant:
    """A tenant's requests to the gateway."""

    def __init__(self, base: str, tenant: str) -> None:
        headers = {"Authorization": f"Bearer {tenant}", "SPASS-User-Id": "fair"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self.client = httpx.AsyncClient(base_url=base, headers=headers, timeout=None, trust_env=False, limits=limits)

    async def turn(self, text: str = "Now") -> int:
        """Send a turn and return the status of its answer."""
        body = {"model": "fair-model", "messages": [{"role": "user", "content": text}]}
        return (await self.client.post(CHAT, json=body)).status_code

    async def create_agent(self) -> str:
        agent = {"name": "fair", "agent": "operative", "model": "fair-model", "tools": ["calculator"]}
        created = await self.client.post(AGENTS, json=agent)
        return str(created.raise_for_status().json()["id"])

    async def start_run(self, agent: str, text: str = "Now") -> str:
        """Return the path of the new run."""
        started = await self.client.post(f"{AGENTS}/{agent}/run", json={"input": text})
        return f"{AGENTS}/{agent}/runs/{started.raise_for_status().json()['id']}"

    async def status_of(self, path: str) -> str:
        return str((await self.client.get(path)).raise_for_status().json()["status"])

    async def put_file(self, index: str, content: bytes) -> str:
        """Send a file of a new index. Return the path of its upload."""
        path = f"/a1/rag/indices/{index}/uploads"
        asked = {"filename": "texts.jsonl", "content_type": "application/jsonl", "size": len(content)}
        form = (await self.client.post(path, json=asked)).raise_for_status().json()
        async with httpx.AsyncClient(timeout=None, trust_env=False) as bucket:  # which must not get the gateway's token
            sent = await bucket.post(form["url"], data=form["fields"], files={"file": content})
        sent.raise_for_status()
        return f"{path}/{form['upload_id']}"


async def wait_for_end(tenant: Tenant, path: str) -> None:
    """Wait until a run or an upload has succeeded."""
    while (status := await tenant.status_of(path)) != "succeeded":
        if status == "failed":
            raise SystemExit(f"{path} has failed")
        await asyncio.sleep(0.05)


def lines(size: int, text_bytes: int) -> bytes:
    """Return a file of at least ``size`` bytes with documents of ``text_bytes``."""
    one = json.dumps({"text": "word " * (text_bytes // 5)}).encode() + b"\n"
    return one * (size // len(one) + 1)


@dataclass
class Busy:
    """A's work: the tasks that hold its connections, and the statuses that it got."""

    tasks: dict[str, list["asyncio.Task[None]"]] = field(default_factory=dict)
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def open(self, kind: str) -> int:
        return sum(not task.done() for task in self.tasks[kind])

    async def stop(self) -> None:
        every = [task for tasks in self.tasks.values() for task in tasks]
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)


async def start_load(tenant: Tenant, load: Load) -> Busy:
    """Start A's work and return when all of it is in progress, waits or was refused."""
    busy = Busy()

    async def turn(statuses: Counter[int]) -> None:
        statuses[await tenant.turn(f"wait {SLOW_SECONDS}")] += 1

    async def follow(statuses: Counter[int]) -> None:
        async with tenant.client.stream("GET", f"{STREAM}/followed") as response:
            statuses[response.status_code] += 1
            async for _ in response.aiter_bytes():
                pass

    async def talk(_: Counter[int]) -> None:
        message = {"role": "user", "content": f"wait {SLOW_SECONDS}"}
        await tenant.client.post(STREAM, json={"message_id": "followed", "messages": [message]})

    def start(kind: str, times: int, one: Callable[[Counter[int]], Awaitable[None]]) -> None:
        statuses = busy.statuses.setdefault(kind, Counter())

        async def run() -> None:
            await one(statuses)

        busy.tasks[kind] = [asyncio.create_task(run()) for _ in range(times)]

    agents = [await tenant.create_agent() for _ in range(load.runs)]
    busy.runs += [await tenant.start_run(agent, f"wait {RUN_SECONDS}") for agent in agents]
    content = lines(load.megabytes * 1_000_000, 8000)
    busy.files += [await tenant.put_file(f"a-{number}", content) for number in range(load.files)]
    start("streams", 1, talk)
    await asyncio.sleep(2)
    start("turns", load.turns, turn)
    start("followers", load.followers, follow)
    await asyncio.sleep(10)
    return busy


async def measure(tenant: Tenant, name: str) -> dict[str, float]:
    """Return the seconds of B's turns, run and file: the median of some."""
    agent = await tenant.create_agent()
    content = lines(1_000_000, 1000)
    seconds: dict[str, list[float]] = {"a turn": [], "a run": [], "a file": []}

    async def timed(kind: str, work: Awaitable[object]) -> None:
        began = time.perf_counter()
        await work
        seconds[kind].append(time.perf_counter() - began)

    async def run() -> None:
        await wait_for_end(tenant, await tenant.start_run(agent))

    async def file(index: str) -> None:
        await wait_for_end(tenant, await tenant.put_file(index, content))

    async def turn() -> None:
        if (status := await tenant.turn()) != 200:
            raise SystemExit(f"a turn of B was answered {status}")

    for _ in range(TURNS):
        await timed("a turn", turn())
    for number in range(TIMES):
        await timed("a run", run())
        await timed("a file", file(f"{name}-{number}"))
    return {kind: statistics.median(times) for kind, times in seconds.items()}


@contextmanager
def gateway() -> Iterator[tuple[Tenant, Tenant]]:
    """Run a gateway with two tenants. Yield them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(serve_model(answer, embed=embed))
        config = _CONFIG.format(upstream=upstream, a=hash_token("a"), b=hash_token("b"))
        (folder / "gateway.yaml").write_text(config)
        (folder / "agents").mkdir()
        (folder / "agents" / "fair.yaml").write_text(_AGENT)
        port = free_port()
        environment = {
            "SPASS_CONFIG": str(folder / "gateway.yaml"),
            "SPASS_AGENTS": str(folder / "agents"),
            "SPASS_HOME": str(folder / "home"),
            "BENCH_KEY": "key",
            "PORT": str(port),
            "AWS_ENDPOINT_URL": "",
        }
        running = stack.enter_context(process([sys.executable, "-m", "local"], port, environment, ROOT))
        yield Tenant(running.base, "a"), Tenant(running.base, "b")


async def compare(a: Tenant, b: Tenant, load: Load) -> bool:
    """Print the figures. Return True if B was not slowed down."""
    alone = await measure(b, "alone")
    print("B alone: " + ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in alone.items()), flush=True)
    began = time.perf_counter()
    busy = await start_load(a, load)
    print(f"A has started its work in {time.perf_counter() - began:.0f} s", flush=True)
    beside = await measure(b, "beside")
    statuses = Counter([await a.status_of(path) for path in busy.runs])
    files = Counter([await a.status_of(path) for path in busy.files])
    for kind in ("turns", "followers"):
        print(f"A's {kind}: {busy.open(kind)} in progress, {busy.statuses[kind][429]} refused")
    print(f"A's runs: {dict(statuses)}\nA's files: {dict(files)}")
    is_busy = all(busy.open(kind) for kind in ("turns", "followers")) and statuses["running"] and files["running"]
    await busy.stop()
    ratios = {kind: beside[kind] / alone[kind] for kind in alone}
    for kind, ratio in ratios.items():
        print(f"B's {kind[2:]}: {alone[kind]:.2f} s alone, {beside[kind]:.2f} s beside A: {ratio:.2f} times (at most {TO_REACH})")
    if not is_busy:
        print("A's work ended before B's: the figures say nothing")
    return bool(is_busy) and max(ratios.values()) <= TO_REACH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("turns", 200), ("followers", 500), ("runs", 100), ("files", 20), ("megabytes", 100)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"of A (default {default})")
    load = Load(**vars(parser.parse_args()))
    with gateway() as (a, b):
        is_fair = asyncio.run(compare(a, b, load))
    raise SystemExit(0 if is_fair else 1)


if __name__ == "__main__":
    main()
