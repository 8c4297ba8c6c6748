"""Measure one compaction: the route, the worker of the queue and the steps of the state machine, each called in this process
as Lambda would call it, in the order of infra/compaction.asl.json."""

import asyncio
import json
import math
import os
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar, cast

import boto3
import httpx

from bench.meter import Meter, record_calls
from bench.processes import ROOT, TOKEN, USER, silence_logs
from bench.session_data import AGENT, KEPT, HistoryShape, SessionWriter
from infra.costs.prices import ResourceUsage
from infra.routes import ROUTES, Route
from infra.workers import WORKERS, Worker
from spass.core.ids import AgentName, SessionId
from spass.core.time import Deadline
from spass.web.services import Services

T = TypeVar("T")

PAST: Final = HistoryShape("100 live turns", 100)
CROWDED: Final = HistoryShape(
    "100 live turns of a model with a small window", 100, agent=AgentName("bench-small"), strategy="auto"
)
TIMES: Final = 1_000  # compactions that the dollars are of
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
# Lambda's event source asks the queue for the message and takes it away.
_SOURCE_REQUESTS: Final = 2
_MIB_IN_GB: Final = 1024


@dataclass(frozen=True, slots=True)
class Invocation:
    """One invocation: its AWS usage, duration and memory."""

    name: str
    memory: int
    meter: Meter
    seconds: float

    @property
    def gb_seconds(self) -> float:
        return self.memory / _MIB_IN_GB * math.ceil(self.seconds * 1000) / 1000


@dataclass(frozen=True, slots=True)
class Machine:
    """The state machine, as far as a successful compaction needs it."""

    definition: Mapping[str, Any]

    def steps(self, work: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """Yield the input of each task, in order. A choice takes its default: no limit stops a step here."""
        name = self.definition["StartAt"]
        while name is not None:
            state = self.definition["States"][name]
            if state["Type"] not in ("Task", "Choice"):
                raise SystemExit(f"the bench follows tasks and choices only, and {name} is a {state['Type']}")
            if state["Type"] == "Task":
                yield {key.removesuffix(".$"): _resolved(key, value, work) for key, value in state["Parameters"].items()}
            name = _next(state)

    @property
    def transitions(self) -> int:
        """Return the number of transitions: one for each state (https://aws.amazon.com/step-functions/pricing/), and one for the
        start, in case AWS counts it too."""
        name, count = self.definition["StartAt"], 1
        while name is not None:
            name, count = _next(self.definition["States"][name]), count + 1
        return count


def _resolved(name: str, value: Any, work: Mapping[str, str]) -> Any:  # noqa: ANN401 (a parameter has any type)
    """Return the value of a parameter: a constant, the input of the execution, or a field of it."""
    if not name.endswith(".$"):
        return value
    return work if value == "$$.Execution.Input" else work[value.removeprefix("$.")]


def _next(state: Mapping[str, Any]) -> str | None:
    return state.get("Default") if state["Type"] == "Choice" else state.get("Next")


class Compaction:
    """Compacts sessions step by step. ``client`` sends requests to the routes in this process."""

    def __init__(self, client: httpx.AsyncClient, services: Services, machine: Machine) -> None:
        self._client = client
        self._services = services
        self._machine = machine

    async def asynchronous(self, session: SessionId) -> Sequence[Invocation]:
        """Compact by a client that starts the job and reads it once at the end."""
        asked, answer = await self._asked(session, {"Prefer": "respond-async"})
        expect(answer, 202)
        worked = await self._worked()
        told, state = await run_invocation(
            "GET …/jobs/…", memory("jobs.get"), self._client.get(f"/a1/jobs/{answer.json()['job_id']}")
        )
        expect(state, 200)
        if state.json()["status"] != "succeeded":
            raise SystemExit(f"a compaction ended as {state.text}")
        return [asked, *worked, told]

    async def waiting(self, session: SessionId) -> Sequence[Invocation]:
        """Compact by a client that waits for the end."""
        (asked, answer), worked = await asyncio.gather(self._asked(session, {}), self._worked())
        expect(answer, 200)
        return [asked, *worked]

    async def before_a_turn(self, session: SessionId) -> Sequence[Invocation]:
        """Compact in a turn whose session does not fit its model any more."""
        path = f"/a1/agents/{CROWDED.agent}/sessions/{session}/messages"
        turn, answer = await run_invocation(
            "POST …/messages", memory("sessions.append"), self._client.post(path, json={"message": "Hello"})
        )
        expect(answer, 200)
        if answer.json()["compaction"] is None:
            raise SystemExit("a turn did not compact its session")
        return [turn]

    async def _asked(self, session: SessionId, headers: Mapping[str, str]) -> tuple[Invocation, httpx.Response]:
        path = f"/a1/agents/{AGENT}/sessions/{session}/compact"
        return await run_invocation("POST …/compact", memory("sessions.compact"), self._client.post(path, headers=dict(headers)))

    async def _worked(self) -> list[Invocation]:
        """Run the functions that the queue and the state machine start."""
        event = {"Records": [await asyncio.to_thread(message)]}
        started, _ = await run_invocation("worker of the queue", memory("compactions"), self._invoked("compactions", event))
        [call] = [call for call in started.meter.calls if call.operation == "StartExecution"]
        parts = [started]
        for step in self._machine.steps(json.loads(str(call.parameters["input"]))):
            made, _ = await run_invocation(
                f"step {step['step']}", memory("compaction_step"), self._invoked("compaction_step", step)
            )
            parts.append(made)
        return parts

    def _invoked(self, worker: str, event: Mapping[str, object]) -> Coroutine[object, object, object]:
        work = import_module(f"functions.workers.{worker}").handler.work
        seconds = next(row.seconds for row in WORKERS if row.module == worker)
        return cast("Coroutine[object, object, object]", work(self._services, event, Deadline.after(seconds)))


async def run_invocation(name: str, memory: int, work: Coroutine[object, object, T]) -> tuple[Invocation, T]:
    """Run ``work`` as one invocation. Return the invocation and the result."""
    with record_calls() as meter:
        began = time.perf_counter()
        given = await work
        return Invocation(name, memory, meter, time.perf_counter() - began), given


def memory(module: str) -> int:
    """Return the memory, in MiB, of the function of this route or worker."""
    rows: tuple[Route | Worker, ...] = (*ROUTES, *WORKERS)
    return next(row.memory for row in rows if row.module == module)


def message() -> Mapping[str, object]:
    """Return the message for a compaction, as Lambda's event source delivers it."""
    queue, client = os.environ["SPASS_COMPACTION_QUEUE"], boto3.client("sqs")
    [received] = client.receive_message(QueueUrl=queue, WaitTimeSeconds=10)["Messages"]
    client.delete_message(QueueUrl=queue, ReceiptHandle=received["ReceiptHandle"])
    return {"messageId": received["MessageId"], "body": received["Body"], "attributes": {"ApproximateReceiveCount": "1"}}


def expect(answer: httpx.Response, status: int) -> None:
    if answer.status_code != status:
        raise SystemExit(f"a compaction was answered {answer.status_code}: {answer.text}")


def total_usage(parts: Sequence[Invocation], transitions: int) -> ResourceUsage:
    """Return the usage of all parts together."""
    calls = Counter(call for one in parts for call in one.meter.counted().elements())
    return ResourceUsage(
        read_units=sum(one.meter.read_units for one in parts),
        write_units=sum(one.meter.write_units for one in parts),
        gb_seconds=sum(one.gb_seconds for one in parts),
        invocations=len(parts),
        api_requests=sum(one.name.startswith(("GET", "POST")) for one in parts),
        queue_requests=(1 + _SOURCE_REQUESTS) * calls["sqs", "SendMessage"],
        transitions=transitions,
        bucket_puts=calls["s3", "PutObject"],
        bucket_gets=calls["s3", "GetObject"],
    )


def report(title: str, parts: Sequence[Invocation], transitions: int) -> None:
    print(f"\n{title}\n")
    print(f"  {'part':22} {'MiB':>5} {'seconds':>8} {'read':>6} {'write':>6} units  calls")
    for one in parts:
        calls = ", ".join(f"{name}{f' ×{count}' if count > 1 else ''}" for (_, name), count in one.meter.counted().items())
        units = f"{one.meter.read_units:6.1f} {one.meter.write_units:6.1f}"
        print(f"  {one.name:22} {one.memory:5} {one.seconds:8.2f} {units}        {calls or 'none'}")
    total = total_usage(parts, transitions)
    print(
        f"  {sum(len(one.meter.made) for one in parts)} AWS calls, {total.read_units:.0f} read and {total.write_units:.0f} write "
        f"units, {total.transitions} transitions, {total.invocations} invocations, {total.gb_seconds:.1f} GB-seconds"
    )
    dollars = total.dollars(TIMES)
    told = ", ".join(f"{service} {sum_:.3f}" for service, sum_ in dollars.items() if sum_)
    print(f"  {TIMES:,} of them: {sum(dollars.values()):.2f} USD ({told}), without the model's tokens")


async def compactions(model_seconds: float) -> None:
    """Compact a session in each way, and print the measurements."""
    from bench.gateway import app

    machine = Machine(json.loads((ROOT / "infra/compaction.asl.json").read_text()))
    histories, services = SessionWriter(), Services()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers=HEADERS, timeout=60
    ) as client:
        compaction = Compaction(client, services, machine)
        ways = (
            ("asked for with Prefer: respond-async", compaction.asynchronous, PAST, machine.transitions),
            ("waited for by its client", compaction.waiting, PAST, machine.transitions),
            ("before a turn, and the turn itself", compaction.before_a_turn, CROWDED, 0),
        )
        print(
            f"\nOne compaction of {PAST.name}, of which {KEPT} messages are kept; "
            f"the model takes {model_seconds:g} s for the summary"
        )
        for title, way, past, transitions in ways:
            with silence_logs():
                await way(await histories.session(past))  # not measured: connections, imports
                parts = await way(await histories.session(past))
            report(title, parts, transitions)
    await services.aclose()
