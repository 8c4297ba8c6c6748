"""AWS calls and capacity units of every route, counted on an emulated AWS.

    python -m bench.calls [--write]

Each route is called twice, and the second, warm call counts. ``rounds`` is how many table calls stand one behind the other before
the model is asked (or before the answer, where none is): what a client waits for. Capacity is as the emulator reports it
(consistent reads of up to 4 KB and writes of up to 1 KB are one unit, transactions cost double). The last rows are of a tenant
that has limits of its own. ``--write`` keeps the counts for ``make costs``. Below are a tenant's first requests in a session of
its role, as in a deployment, and the processor times of a turn with and without subscribers of its events (``bench.bus``).
"""

import argparse
import asyncio
import io
import json
import os
import sys
import tempfile
import time
import zipfile
from collections import Counter
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, TypeVar

import httpx

from bench import bus
from bench.processes import ADMIN_TOKEN, ROOT, TOKEN, USER, emulated_aws, server, write_config
from infra.costs.requests import SWEEP, Counted, route_label, write_counts
from infra.routes import ROUTES, Route
from spass.approvals.record import Approval, StoredCall
from spass.approvals.store import put_approval
from spass.aws.clients import Aws
from spass.core.ids import AgentName, Operator, OperatorId, SessionId, TenantId, UserId, new_id
from spass.core.time import Deadline, now
from spass.memory.state import state_creation
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.writes import Update
from spass.testing.faults import FaultPlan, inject
from spass.web.services import Services

T = TypeVar("T")
READS = frozenset({"GetItem", "Query"})
AS_IN_PROD = {"SPASS_TELEMETRY": "1", "SPASS_METRICS_NAMESPACE": "Spass/prod"}
TABLE = sys.stdout  # the gateway in this process logs to standard output too, and is led away from it


@dataclass(slots=True)
class Recorder(FaultPlan):
    """Records calls with their times."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    units: dict[str, float] = field(default_factory=lambda: {"reads": 0.0, "writes": 0.0})

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        began = time.perf_counter()
        # Named, not super(): the decorator of a slotted dataclass creates a second class, and super() would look in the first.
        result = await FaultPlan.around(self, call, run)
        self.spans.append((began, time.perf_counter()))
        self.units["reads" if call.operation in READS else "writes"] += getattr(result, "capacity_units", 0.0)
        return result

    def rounds(self, until: float) -> int:
        """Return the number of table calls that began before ``until`` and had to wait for another to end."""
        rounds, free = 0, 0.0
        for began, ended in sorted(self.spans):
            if began >= free and began < until:
                rounds, free = rounds + 1, ended
        return rounds


class CountingLog(io.TextIOBase):
    """A standard output that keeps the lines of the log until someone counts them."""

    def __init__(self) -> None:
        self._written: list[str] = []

    def write(self, text: str) -> int:
        self._written.append(text)
        return len(text)

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        lines = "".join(self._written).splitlines()
        self._written.clear()
        return lines


LOG = CountingLog()
COUNTS: dict[str, Counted] = {}


@dataclass(frozen=True, slots=True)
class Fixtures:
    session: str
    grown: str  # a session that can be compacted
    job: str
    upload: str
    request: str
    chat: str  # the message_id of a finished stream
    approval: str  # of a call that waits
    operator: str
    agent: str  # a managed agent
    run: str  # of that agent, which has ended
    idle: str  # a managed agent that has not run

    def path(self, route: Route) -> str:
        session = self.grown if route.module == "sessions.compact" else self.session
        made = {"session_id": session, "job_id": self.job, "upload_id": self.upload, "request_id": self.request}
        made |= {"message_id": self.chat, "approval_id": self.approval, "operator_id": self.operator}
        made |= {"agent_id": self.idle if route.module == "managed.run" else self.agent, "run_id": self.run}
        ours = {"name": "bench", "index_id": "bench", "workspace_id": "bench", "doc_id": "d1", "model": "bench-model"}
        path = route.path.format_map({**ours, "file": "swagger-ui.css", "asset": page_file(), **made})
        return f"{path}?path={FILE}" if path.endswith("/file") else path


BODIES: dict[str, object] = {
    "chat.completions": {"model": "bench-model", "messages": [{"role": "user", "content": "Two and two?"}]},
    "embeddings.create": {"model": "all-minilm-l6-v2", "input": "Two and two?"},
    "tools.execute": {"name": "calculator", "arguments": {"expression": "2+2"}},
    "tenant.config_put": {"rag_top_k": 5},
    "agents.chat": {"message": "Two and two?"},
    "ask.create": {"input": "Two and two?", "model": "bench-model"},
    "streams.job_card": {"title": "A sum", "task": "Two and two?"},
    "approvals.decide": {"decision": "deny"},
    "sessions.create": {},
    "sessions.append": {"message": "Two and two?"},
    "rag.replace": {"documents": [{"id": "d1", "text": "Two and two are four."}]},
    "rag.append": {"documents": [{"id": "d2", "text": "Three and three are six."}]},
    "rag.documents_patch": {"metadata": {"asked": True}},
    "rag.query": {"query": "Two and two?"},
    "rag.uploads_create": {"filename": "sums.md", "content_type": "text/markdown", "size": 100},
    "workspaces.restore": {"version": 1, "paths": ["sums.md"]},
    "managed.create": {"name": "Bench", "agent": "simple"},
    "managed.patch": {"name": "Bench"},
    "managed.message_send": {"content": "Two and two?"},
    "managed.run": {"input": "Two and two?"},
}
FILE = "sums.md"
STREAM = {"message": "Two and two?", "stream": True}
MANAGED_STREAM = {"content": "Two and two?", "stream": True}
# Calls that take away what the others need come last; like the compaction of a session, they can be made only once.
LAST = (
    "approvals.decide",
    "sessions.compact",
    "sessions.delete",
    "rag.documents_delete",
    "rag.delete",
    "workspaces.file_delete",
    "workspaces.delete",
    "operators.delete",
    "managed.run",
    "managed.delete",
    "usage.reset",
)
SESSIONS = "/a1/agents/bench/sessions"
# Nobody works on the queue here: who waited for a job would wait in vain. `python -m bench.sessions` carries one out.
AT_ONCE = {"Prefer": "respond-async"}
# Only these are called with an admin's token: for an admin a tenant's settings are read again with every request.
BY_ADMINS = ("tenant.config_put", "usage.reset")
AS_ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
# A tenant's limits, and the routes that they are asked on.
LIMITS = {"tokens_per_minute": 1_000_000, "monthly_budget_usd": 100}
LIMITED = ("chat.completions", "embeddings.create", "agents.chat", "sessions.append", "rag.query")


async def measure() -> None:
    from bench.gateway import app

    headers = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": USER}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers) as client:
        world = await prepare(client)
        order = sorted(ROUTES, key=lambda route: (LAST.index(route.module) + 1) if route.module in LAST else 0)
        print(f"{'route':66} {'table':>5} {'reads':>5} {'writes':>6} {'units':>6} {'bucket':>6} {'rounds':>6}  calls", file=TABLE)
        for route in order:
            await show(client, route, world)
        key = {"Idempotency-Key": "bench"}
        world = await prepare(client)
        append = next(route for route in ROUTES if route.module == "sessions.append")
        await show(client, append, world, "stream", {}, STREAM)
        message = next(route for route in ROUTES if route.module == "managed.message_send")
        await show(client, message, world, "stream", {}, MANAGED_STREAM)
        await show(client, append, world, "key", key)
        (await client.put("/v1/tenant/config", json=LIMITS, headers=AS_ADMIN)).raise_for_status()
        for route in (route for route in ROUTES if route.module in LIMITED):
            await show(client, route, world, "limits")
        await count_sweep()
        await show_sessions(client)


async def count_sweep() -> None:
    """Count a run of the hourly sweep that finds nothing to do."""
    from bench.gateway import app
    from functions.workers.sweep import work

    await work(app.state.services, {}, Deadline.after(600))
    LOG.take()
    with inject(Recorder()) as plan:
        assert isinstance(plan, Recorder)
        await work(app.state.services, {}, Deadline.after(600))
    COUNTS[SWEEP] = counted(plan, LOG.take(), 0)


async def show_sessions(client: httpx.AsyncClient) -> None:
    """Print how often a tenant's first and second request in a worker call STS, and how long they take, with the role that a
    deployment has."""
    from bench.gateway import app

    services: Services = app.state.services
    settings = services.settings
    services.aws = Aws(table=settings.table, bucket=settings.bucket, tenant_role="arn:aws:iam::000000000000:role/bench")
    services.aws.connect()
    for name in ("first", "second"):
        began = time.perf_counter()
        with inject(Recorder()) as plan:
            (await client.get("/a1/rag/indices/bench")).raise_for_status()
        sessions = sum(call.service == "sts" for call in plan.calls)
        took = 1000 * (time.perf_counter() - began)
        print(f"{name} request of a tenant with a session of its role: {sessions} calls of STS, {took:.0f} ms", file=TABLE)


def counted(plan: Recorder, log: list[str], answer_bytes: int) -> Counted:
    operations = Counter(call.operation for call in plan.calls)
    calls = [line for line in map(json.loads, log) if line.get("event") == "call"]
    return Counted(
        reads=plan.units["reads"],
        writes=plan.units["writes"],
        puts=operations["PutObject"],
        gets=operations["GetObject"],
        sends=sum(call.service == "sqs" for call in plan.calls),
        models=sum(line["kind"] == "chat" for line in calls),
        records=len(calls),
        log_bytes=round(sum(len(line) + 1 for line in log), -2),  # ids and times have different lengths
        answer_bytes=answer_bytes,
    )


async def prepare(client: httpx.AsyncClient) -> Fixtures:
    (await client.post("/a1/rag/indices/bench/documents", json=BODIES["rag.replace"])).raise_for_status()
    for _ in range(2):  # a restore then has something to bring back
        file = await client.put(f"/a1/workspaces/bench/file?path={FILE}", **bytes_of("workspaces.file_put"))
        file.raise_for_status()
    session = await client.post(SESSIONS, json={})
    upload = await client.post("/a1/rag/indices/bench/uploads", json=BODIES["rag.uploads_create"])
    query = await client.post("/a1/rag/indices/bench/query", json=BODIES["rag.query"])
    request = query.raise_for_status().headers["SPASS-Request-Id"]
    job = await client.post(f"{SESSIONS}/{await create_long_session(client)}/compact", headers=AT_ONCE)
    session_id = session.raise_for_status().json()["id"]
    agent = await create_managed_agent(client)
    return Fixtures(
        session_id,
        await create_long_session(client),
        job.raise_for_status().json()["job_id"],
        upload.raise_for_status().json()["upload_id"],
        request,
        await create_stream(client),
        await create_approval(session_id),
        await create_operator(session_id),
        agent,
        await create_managed_run(client, agent),
        await create_managed_agent(client),
    )


async def create_approval(session: str) -> str:
    """Store an approval of a call in ``session``, as the turn that holds it would, and return its id."""
    from bench.gateway import app

    store = app.state.services.aws.for_tenant(TenantId("bench"))
    head = keys.session_head(store.tenant, SessionId(session))
    approval = Approval.new(
        user=UserId(USER),
        tool="rag_index_delete",
        agent=AgentName("bench"),
        session=SessionId(session),
        message_id=None,
        preview={"index_id": "bench"},
        rich=(),
        arguments={"index_id": "bench"},
        now=time.time(),
    )
    await store.table.write(Update(head, set={"hold": {"owner": "bench"}}))
    await put_approval(store, approval, StoredCall({"index_id": "bench"}, {"state": ""}), "bench")
    await store.table.write(Update(head, remove=("hold",)))
    return approval.id


async def create_operator(session: str) -> str:
    """Store an operator of ``session``, as its first turn would, and return its id."""
    from bench.gateway import app

    store, operator = app.state.services.aws.for_tenant(TenantId("bench")), Operator(UserId(USER), OperatorId(session))
    await store.table.write(state_creation(store, operator, SessionId(session), AgentName("bench"), now()))
    return operator.id


async def create_managed_agent(client: httpx.AsyncClient) -> str:
    created = await client.post("/v1/managed-agents", json=BODIES["managed.create"])
    return str(created.raise_for_status().json()["id"])


async def create_managed_run(client: httpx.AsyncClient, agent: str) -> str:
    """Run a managed agent as a stream to its end and return the id of the run."""
    (await client.post(f"/v1/managed-agents/{agent}/messages", json=MANAGED_STREAM)).raise_for_status()
    runs = await client.get(f"/v1/managed-agents/{agent}/runs")
    return str(runs.raise_for_status().json()["runs"][0]["id"])


async def create_stream(client: httpx.AsyncClient) -> str:
    """Run a chat to its end and return its ``message_id``."""
    body = chat_body()
    (await client.post("/c1/agents/bench/chat", json=body)).raise_for_status()
    return str(body["message_id"])


def chat_body() -> dict[str, object]:
    """Return the body of a chat with an id of its own, because a repeated one is replayed."""
    return {"message_id": new_id("msg"), "messages": [{"role": "user", "content": "Two and two?"}]}


class Body(TypedDict, total=False):
    """The arguments of httpx for a body, and for the headers that it needs."""

    json: object
    content: bytes
    headers: dict[str, str]


def body_of(route: Route) -> Body:
    if route.module in {"workspaces.file_put", "workspaces.archive_put"}:
        return bytes_of(route.module)
    return {"json": chat_body() if route.module == "streams.create" else BODIES.get(route.module)}


def bytes_of(module: str) -> Body:
    """Return a file or an archive with a new content, because a write of the same content makes no version."""
    content = f"Two and two are four, says {new_id('msg')}.".encode()
    if module == "workspaces.file_put":
        return {"content": content, "headers": {"Content-Type": "application/octet-stream"}}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(FILE, content)
    return {"content": packed.getvalue(), "headers": {"Content-Type": "application/zip"}}


async def create_long_session(client: httpx.AsyncClient) -> str:
    """Create a session with one turn, which a compaction would summarise."""
    session = await client.post(SESSIONS, json={"compact_keep_last_n": 0})
    name: str = session.raise_for_status().json()["id"]
    (await client.post(f"{SESSIONS}/{name}/messages", json=BODIES["sessions.append"])).raise_for_status()
    return name


def page_file() -> str:
    """Return the name of a file of the page, which depends on its content."""
    manifest = json.loads((ROOT / ".page" / "manifest.json").read_text())
    name: str = next(iter(manifest["files"]))
    return name


async def show(
    client: httpx.AsyncClient,
    route: Route,
    world: Fixtures,
    note: str | None = None,
    headers: dict[str, str] | None = None,
    body: object = None,
) -> None:
    path = world.path(route)
    who = AS_ADMIN if route.module in BY_ADMINS else {}
    if route.module not in LAST and headers is None:
        await send(client, route, path, who, body)
    LOG.take()
    with inject(Recorder()) as plan:
        assert isinstance(plan, Recorder)
        answer = await send(client, route, path, AT_ONCE | who | (headers or {}), body)
    table = [call.operation for call in plan.calls if call.service == "dynamodb"]
    bucket = [call.operation for call in plan.calls if call.service == "s3"]
    reads = sum(operation in READS for operation in table)
    rounds = rounds_before_model(plan, table)
    names = ", ".join(f"{name}{f' ×{count}' if count > 1 else ''}" for name, count in Counter(table + bucket).items())
    label = route_label(route) + (f" ({note})" if note else "")
    COUNTS[label] = counted(plan, LOG.take(), len(answer))
    counts = f"{len(table):5} {reads:5} {len(table) - reads:6} {sum(plan.capacity):6.1f} {len(bucket):6} {rounds:6}"
    print(f"{label:66} {counts}  {names}", file=TABLE)


async def send(client: httpx.AsyncClient, route: Route, path: str, headers: dict[str, str], body: object) -> bytes:
    sent: Body = {"json": body} if body is not None else body_of(route)
    sent["headers"] = headers | sent.get("headers", {})
    answer = await client.request(route.method, path, **sent)
    if not answer.is_redirect:
        answer.raise_for_status()
    return answer.content


def rounds_before_model(plan: Recorder, table: list[str]) -> int:
    """Return the rounds before the model call. The first transaction follows the model call; without one, return all rounds."""
    spans = sorted(plan.spans)
    accounted = "TransactWriteItems" in table and len(spans) == len(table)
    until = spans[table.index("TransactWriteItems")][0] if accounted else float("inf")
    return plan.rounds(until)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write infra/costs/calls.json")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(server("bench.upstream:upstream", {}))
        os.environ |= stack.enter_context(emulated_aws()) | write_config(folder, upstream) | AS_IN_PROD
        stack.enter_context(redirect_stdout(LOG))
        asyncio.run(measure())
        if options.write:
            write_counts(COUNTS)
        asyncio.run(bus.measure())


if __name__ == "__main__":
    main()
