"""Measure managed agents: AWS calls and dollars of messages, runs and ticks, idle agents, and how soon a run asks its model.

    python -m bench.managed [--model-seconds S] [--runs N]

The functions of the routes and of the worker run in this process, with an emulated AWS that counts units. Dollars are of list
prices (``infra.costs.prices``), without the model's tokens, with a model that needs ``--model-seconds`` for its answer. Then a
gateway is started as ``make run`` starts one, and its own poll of the emulated queue executes ``--runs`` queued runs: the time
from the answer to ``POST …/run`` until the model is asked.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import boto3
import httpx

from bench.compactions import Invocation, memory, run_invocation, total_usage
from bench.meter import record_calls
from bench.operators import TURN, gateway
from bench.processes import ROOT, TOKEN, USER, free_port, process, write_config
from functions.workers import runs
from spass.core.ids import TenantId
from spass.core.time import Deadline
from spass.managed.schedules import SCHEDULED_TIME
from spass.testing.model_server import Body, Completion, serve_model
from spass.web.services import Services

MORE_CALLS: Final = 6
"""Calls of a tick beside those of a streamed turn. Two of them take and give back a place among the workers."""
TIMES: Final = 1_000
"""Messages, runs and ticks that the dollars are of."""
AGENTS: Final = "/v1/managed-agents"
IDLE: Final = 50
TICK: Final = "A tick of a schedule"
MESSAGE: Final = "[]"  # the scripted model calls no tools, and answers
FIGURES: Final = sys.stdout  # the gateway in this process logs to standard output, and is led away from it
_AGENT: Final = {"name": "bench", "agent": "operative", "model": "bench-model", "tools": ["calculator"]}
_SECONDS: Final = 840


class ManagedBench:
    """A managed agent behind routes and a worker in this process. Its model needs ``model_seconds``, which are not waited for."""

    def __init__(self, client: httpx.AsyncClient, services: Services, agent: str, model_seconds: float) -> None:
        self._client = client
        self._services = services
        self._path = f"{AGENTS}/{agent}"
        self._model_seconds = model_seconds
        self._ticked_at = datetime.now(UTC).replace(second=0)

    @classmethod
    async def create(cls, client: httpx.AsyncClient, services: Services, model_seconds: float) -> "ManagedBench":
        schedule = {"expression": "rate(1 hour)", "input": MESSAGE}
        created = await client.post(AGENTS, json={**_AGENT, "schedule": schedule})
        return cls(client, services, created.raise_for_status().json()["id"], model_seconds)

    async def stream_turn(self) -> Sequence[Invocation]:
        """Send a message to an ordinary agent's session, and read the stream to the end."""
        session = await self._client.post(f"/a1/agents/{TURN.agent}/sessions", json={})
        path = f"/a1/agents/{TURN.agent}/sessions/{session.raise_for_status().json()['id']}/messages"
        request = self._client.post(path, json={"message": MESSAGE, "stream": True})
        sent, answer = await run_invocation("POST …/messages", memory("sessions.append"), request)
        answer.raise_for_status()
        return [self._with_model(sent)]

    async def stream_message(self) -> Sequence[Invocation]:
        """Send a message, and read the stream of its run to the end."""
        body = {"content": MESSAGE, "stream": True}
        sent, answer = await self._request("POST", "messages", body, "managed.message_send")
        if not answer.text.rstrip().endswith("data: [DONE]"):
            raise SystemExit(f"a streamed message did not end well: {answer.text[-500:]}")
        return [self._with_model(sent)]

    async def run_in_background(self) -> Sequence[Invocation]:
        """Put a message into the mailbox, start a run, and let the worker execute it."""
        put, _ = await self._request("POST", "messages", {"content": MESSAGE}, "managed.message_send")
        started, answer = await self._request("POST", "run", None, "managed.run")
        worked = await self._work(await asyncio.to_thread(receive, os.environ["SPASS_RUNS_QUEUE"]))
        run = (await self._client.get(f"{self._path}/runs/{answer.json()['id']}")).raise_for_status().json()
        if run["status"] != "succeeded":
            raise SystemExit(f"a queued run ended as {run}")
        return [put, started, worked]

    async def tick(self) -> Sequence[Invocation]:
        """Let the worker execute the run of a tick, a minute after the one before."""
        entries = boto3.client("scheduler")
        [entry] = entries.list_schedules(GroupName=os.environ["SPASS_SCHEDULE_GROUP"])["Schedules"]
        body = entries.get_schedule(GroupName=entry["GroupName"], Name=entry["Name"])["Target"]["Input"]
        self._ticked_at += timedelta(minutes=1)
        message = {"messageId": "tick", "body": body.replace(SCHEDULED_TIME, f"{self._ticked_at:%Y-%m-%dT%H:%M:%SZ}")}
        attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": str(int(time.time() * 1000))}
        worked = await self._work(message | {"attributes": attributes})
        [run, *_] = (await self._client.get(f"{self._path}/runs")).raise_for_status().json()["runs"]
        if (run["status"], run["trigger"]) != ("succeeded", "schedule"):
            raise SystemExit(f"a tick's run ended as {run}")
        return [worked]

    async def _work(self, message: Mapping[str, Any]) -> Invocation:
        working = cast("Coroutine[Any, Any, object]", runs.work(self._services, {"Records": [message]}, Deadline.after(_SECONDS)))
        worked, _ = await run_invocation("worker of the queue", memory("runs"), working)
        return self._with_model(worked)

    def _with_model(self, invocation: Invocation) -> Invocation:
        return replace(invocation, seconds=invocation.seconds + self._model_seconds)

    async def _request(
        self, method: str, path: str, body: Mapping[str, object] | None, module: str
    ) -> tuple[Invocation, httpx.Response]:
        request = self._client.request(method, f"{self._path}/{path}", json=body)
        invocation, answer = await run_invocation(f"{method} …/{path}", memory(module), request)
        return invocation, answer.raise_for_status()


def receive(queue: str) -> Mapping[str, Any]:
    """Return the queue's message, as Lambda's event source delivers it."""
    client = boto3.client("sqs")
    [received] = client.receive_message(QueueUrl=queue, WaitTimeSeconds=10)["Messages"]
    client.delete_message(QueueUrl=queue, ReceiptHandle=received["ReceiptHandle"])
    return {"messageId": received["MessageId"], "body": received["Body"], "attributes": {"ApproximateReceiveCount": "1"}}


def table_calls(parts: Sequence[Invocation]) -> int:
    return sum(call.service == "dynamodb" for part in parts for call in part.meter.made)


def report(title: str, parts: Sequence[Invocation]) -> None:
    print(f"\n{title}\n", file=FIGURES)
    for part in parts:
        calls = ", ".join(f"{name} ×{count}" for (_, name), count in part.meter.counted().items())
        table = table_calls([part])
        units = f"{part.meter.read_units:5.1f} read and {part.meter.write_units:5.1f} write units"
        print(f"  {part.name:20} {table:3} table calls, {units}: {calls}", file=FIGURES)
    usage = total_usage(parts, transitions=0)
    if title == TICK:  # the scheduler sends the message, which Lambda receives and deletes
        usage = replace(usage, schedules=1, queue_requests=usage.queue_requests + 3)
    dollars = usage.dollars(TIMES)
    told = ", ".join(f"{service} {sum_:.3f}" for service, sum_ in dollars.items() if sum_)
    print(f"  {TIMES:,} of them: {sum(dollars.values()):.2f} USD ({told}), without the model's tokens", file=FIGURES)


async def report_idle(client: httpx.AsyncClient, services: Services) -> None:
    """Compare the calls of the hourly sweep before and after ``IDLE`` agents were created, which then wait."""
    units: list[tuple[int, float]] = []
    for number in (0, IDLE):
        for _ in range(number):
            (await client.post(AGENTS, json=_AGENT)).raise_for_status()
        with record_calls() as meter:
            await services.managed_agents.sweep(services.aws.for_tenant(TenantId("bench")), Deadline.after(_SECONDS))
        units.append((len(meter.made), meter.read_units + meter.write_units))
    (calls, before), (more_calls, after) = units
    verdict = "met" if (calls, before) == (more_calls, after) else "NOT met"
    print(
        f"\n{IDLE} idle agents: {more_calls - calls} more calls and {after - before:g} more units of the hourly sweep ",
        file=FIGURES,
        end="",
    )
    print(f"(to reach: 0): {verdict}", file=FIGURES)


async def measure_usage(client: httpx.AsyncClient, model_seconds: float) -> None:
    from bench.gateway import app

    services: Services = app.state.services
    async with client:
        bench = await ManagedBench.create(client, services, model_seconds)
        print(f"The model takes {model_seconds:g} s for its answer", file=FIGURES)
        turn = 0
        for title, work in (
            ("A streamed turn of a session", bench.stream_turn),
            ("A streamed message", bench.stream_message),
            ("A message, and a queued run", bench.run_in_background),
            (TICK, bench.tick),
        ):
            await work()  # not measured: the session begins, connections, imports
            parts = await work()
            report(title, parts)
            turn = turn or table_calls(parts)
            if title == TICK:
                more = table_calls(parts) - turn
                verdict = "met" if more <= MORE_CALLS else "NOT met"
                print(f"  {more} table calls more than a streamed turn (to reach: {MORE_CALLS}): {verdict}", file=FIGURES)
        await report_idle(client, services)
    await services.aclose()


def measure_delays(times: int) -> Sequence[float]:
    """Return the seconds from the answers to ``POST …/run`` until the model is asked, on a gateway as ``make run`` starts it."""
    asked: list[float] = []

    def answer(_: Body) -> Completion:
        asked.append(time.perf_counter())
        return Completion({"content": "Done."})

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = free_port()
        upstream = stack.enter_context(serve_model(answer))
        environment = write_config(folder, upstream) | {"PORT": str(port), "SPASS_HOME": str(folder / "home")}
        stack.enter_context(process([sys.executable, "-m", "local"], port, environment | {"AWS_ENDPOINT_URL": ""}, ROOT))
        headers = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
        client = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=60)
        )
        path = f"{AGENTS}/{client.post(AGENTS, json=_AGENT).raise_for_status().json()['id']}"
        return [_delay(client, path, asked) for _ in range(times)]


def _delay(client: httpx.Client, path: str, asked: list[float]) -> float:
    asked.clear()
    run = client.post(f"{path}/run", json={"input": MESSAGE}).raise_for_status().json()["id"]
    queued = time.perf_counter()
    while client.get(f"{path}/runs/{run}").raise_for_status().json()["status"] in ("queued", "running"):
        time.sleep(0.02)
    return asked[0] - queued


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-seconds", type=float, default=5.0, help="the time of the model's answer (default 5)")
    parser.add_argument("--runs", type=int, default=11, help="queued runs on the started gateway (default 11)")
    options = parser.parse_args()
    delays = measure_delays(options.runs)
    with gateway() as client:
        asyncio.run(measure_usage(client, options.model_seconds))
    print(
        f"\nFrom the queue to the model, on the emulator: {statistics.median(delays):.2f} s at the median, "
        f"{min(delays):.2f} to {max(delays):.2f}"
    )


if __name__ == "__main__":
    main()
