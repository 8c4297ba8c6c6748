"""Spans over HTTP: one tree for a request and for all that it asks for, and nothing that an operator must not see."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, cast

import pytest
from starlette.types import Message

from functions.agents import chat as chat_route
from functions.workers import compaction_step, compactions, runs, sweep
from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec, file_model
from spass.aws.clients import Aws
from spass.aws.job_targets import JobTargets
from spass.core.time import Deadline
from spass.models.errors import AttemptFailed
from spass.models.types import CallContext, ChatRequest
from spass.observability import tracer
from spass.observability.settings import TracesSettings
from spass.observability.trace import Trace
from spass.testing.aws import MemoryAws
from spass.testing.http_server import HttpRequest, serve
from spass.testing.model import Answer, calls, in_turn
from spass.testing.state_machine import StateMachine
from spass.web.http_function import stream_app
from tests.functions.gateway import Gateway, Reply
from tests.functions.managed_agents import TARGETS, tick
from tests.simulated.aws import COMPACTION_MACHINE
from tests.span_recorder import RecordedSpan, SpanRecorder, span_recorder

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INCOMING: Final = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
ALL_TARGETS: Final = JobTargets(
    queue="https://sqs/jobs",
    compaction_queue="https://sqs/compactions",
    compaction_machine="machine",
    runs_queue=TARGETS.runs_queue,
    runs_queue_arn=TARGETS.runs_queue_arn,
    schedule_group=TARGETS.schedule_group,
    schedule_role=TARGETS.schedule_role,
)
CHAT: Final = "/a1/agents/boss/chat"


class Machine:
    """The state machine's client. ``inputs`` are those of the executions that were started."""

    def __init__(self) -> None:
        self.inputs: list[Mapping[str, str]] = []

    def start_execution(self, *, input: str, **_: str) -> Mapping[str, str]:
        self.inputs.append(json.loads(input))
        return {}


class TracedGateway:
    """A gateway that sends its spans to ``recorder``. Messages of queues wait until they are delivered."""

    def __init__(self, gateway: Gateway, aws: MemoryAws, recorder: SpanRecorder) -> None:
        self.gateway = gateway
        self.aws = aws
        self.recorder = recorder
        self.machine = Machine()
        self.messages: list[str] = []
        aws.__dict__["_states"] = self.machine
        aws.queues.on_message = lambda _, body: self.messages.append(body)
        self.export(recorder.url)
        gateway.services.agents = AgentRegistry((agent("boss", "coder"), agent("coder")))
        gateway.model.script = answer

    def export(self, url: str, sample: float = 1.0) -> None:
        traces = TracesSettings(endpoint=url, sample=sample, headers={"x-key": "a"}, resource={"service.name": "spass"})
        services = self.gateway.services
        services.settings = replace(services.settings, job_targets=ALL_TARGETS, traces=traces)
        services.__dict__.pop("tracer", None)

    def trust(self) -> None:
        """Let the tenant ``demo`` have ``trusted_traces``."""
        config = self.gateway.services.config
        tenants = tuple(one.model_copy(update={"trusted_traces": one.id == "demo"}) for one in config.tenants)
        self.gateway.services.config = config.model_copy(update={"tenants": tenants})

    def deliver(self) -> None:
        """Deliver the waiting messages of compactions, and run the executions that they start."""
        for body in self.messages:
            record = {"messageId": "m1", "body": body, "attributes": {"ApproximateReceiveCount": "1"}}
            assert self.gateway.work(compactions.work, {"Records": [record]}) == {"batchItemFailures": []}
        self.messages.clear()

        async def invoke(event: Mapping[str, Any]) -> object:
            return await compaction_step.work(self.gateway.services, event, Deadline.after(60))

        for given in self.machine.inputs:
            assert self.gateway.run(StateMachine(COMPACTION_MACHINE, invoke).run(given))

    async def close(self) -> None:
        if (tracer := self.gateway.services.tracer) is not None:
            await tracer.exporter.aclose()

    def spans(self) -> list[RecordedSpan]:
        """Return the spans so far, and forget them."""
        spans = self.recorder.spans
        self.recorder.bodies.clear()
        return spans


@pytest.fixture
def aws() -> Aws:
    return MemoryAws(ALL_TARGETS)


@pytest.fixture
def traced(gateway: Gateway, aws: Aws) -> Iterator[TracedGateway]:
    with span_recorder() as recorder:
        traced = TracedGateway(gateway, cast("MemoryAws", aws), recorder)
        yield traced
        gateway.run(traced.close())


def agent(name: str, *delegates: str) -> AgentSpec:
    own = {"name": name, "model": "small", "system_prompt": name, "workspace": "default", "delegates": [*delegates]}
    tools = ["calculator", "rag_query", *(["delegate"] if delegates else [])]
    return file_model("orchestrator").model_validate({**own, "tools": tools}).spec()


SUM: Final = ("calculator", {"expression": "6*7"})
QUERY: Final = ("rag_query", {"index_id": "notes", "query": "alpha"})
TASK: Final = ("delegate", {"agent": "coder", "task": "A task."})
FIRST: Final = {"boss": calls(SUM, QUERY, TASK), "coder": calls(SUM)}


def answer(request: ChatRequest, _: CallContext) -> Answer:
    """Answer as each agent does: first with its calls, then with a text."""
    name = request.messages[0].content.split()[0]
    return FIRST[name] if name in FIRST and request.messages[-1].tool_call_id is None else f"The answer of {name}."


def tree_of(spans: list[RecordedSpan], parent: str) -> dict[str, Any]:
    """Return the names of the spans below ``parent`` as a tree. The same names are counted."""
    tree: dict[str, Any] = {}
    for span in spans:
        if span.parent_id == parent:
            name = next(
                name for number in count(1) if (name := span.name if number == 1 else f"{span.name} {number}") not in tree
            )
            tree[name] = tree_of(spans, span.id)
    return tree


DELEGATED: Final[Mapping[str, Any]] = {
    "invoke_agent coder": {"chat small": {}, "execute_tool calculator": {}, "chat small 2": {}}
}
TURN: Final[Mapping[str, Any]] = {
    "chat small": {},
    "execute_tool calculator": {},
    "execute_tool rag_query": {"embeddings mini-embed": {}},
    "execute_tool delegate": DELEGATED,
    "chat small 2": {},
}


def test_a_turn_a_compaction_and_a_scheduled_run_are_one_tree_without_texts(traced: TracedGateway) -> None:
    planted = iter([f"planted-{number:03}" for number in range(200)])
    gateway, user = traced.gateway, {"SPASS-User-Id": next(planted)}
    documents = [{"id": next(planted), "text": next(planted), "metadata": {next(planted): next(planted)}} for _ in range(30)]
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": documents})
    gateway.model.script = lambda request, context: _with_text(answer(request, context), next(planted))
    traced.trust()
    traced.spans()

    def post(target: str, body: object, **headers: str) -> Reply:
        reply = gateway.send("POST", target, headers={**INCOMING, **user, **headers}, body=body)
        assert reply.status < 300, reply.text
        return reply

    session = post("/a1/agents/boss/sessions", {"title": next(planted), "compact_keep_last_n": 2}).json["id"]
    messages = f"/a1/agents/boss/sessions/{session}/messages"
    for _ in range(3):
        post(messages, {"message": next(planted)}, **{"Idempotency-Key": next(planted)})
    post(f"/a1/agents/boss/sessions/{session}/compact", {}, Prefer="respond-async")
    traced.deliver()
    once = {"expression": "at(2099-01-31T09:00:00)", "input": next(planted)}
    params = {"name": next(planted), "agent": "boss", "schedule": once}
    post("/v1/managed-agents", params)
    (entry,) = traced.aws.scheduler.entries.values()
    assert tick(gateway, entry, "2099-01-31T09:00:00Z") == {"batchItemFailures": []}
    spans = traced.spans()
    assert {span.trace_id for span in spans} == {TRACE}
    assert len({span.id for span in spans}) == len(spans)
    turn = {"invoke_agent boss": TURN}
    route = "POST /a1/agents/{name}/sessions"
    assert tree_of(spans, SPAN) == {
        route: {},
        f"{route}/{{session_id}}/messages": turn,
        f"{route}/{{session_id}}/messages 2": turn,
        f"{route}/{{session_id}}/messages 3": turn,
        f"{route}/{{session_id}}/compact": {
            "process compactions": {"compaction plan": {}, "compaction summarise": {"chat small": {}}, "compaction commit": {}}
        },
        "POST /v1/managed-agents": {"process runs": turn},
    }
    sent = b"".join(request.body for request in traced.recorder.requests).decode()
    for secret in (*[f"planted-{number:03}" for number in range(200)], "demo-token", "The answer", "A task", "6*7", "alpha"):
        assert secret not in sent


def _with_text(answer: Answer, text: str) -> Answer:
    return f"{answer} {text}" if isinstance(answer, str) else answer


def ask(traced: TracedGateway, traceparent: str | None = None, **more: Any) -> RecordedSpan:
    """Send a request with this header, and return the span of the request."""
    headers = {"traceparent": traceparent} if traceparent is not None else {}
    traced.gateway.send("GET", "/v1/models", headers=headers, **more)
    (span,) = traced.spans()
    return span


def test_the_trace_of_another_tenants_client_is_linked(traced: TracedGateway) -> None:
    traced.trust()
    assert ask(traced, INCOMING["traceparent"]).trace_id == TRACE
    span = ask(traced, INCOMING["traceparent"], token="other-token")
    assert (span.parent_id, span.links, span.trace_id == TRACE) == ("", [(TRACE, SPAN)], False)
    assert span.attributes["spass.tenant"] == "other"


@pytest.mark.parametrize("traceparent", ["x" * 9000, f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01"])
def test_a_malformed_traceparent_is_ignored(traced: TracedGateway, traceparent: str) -> None:
    traced.trust()
    span = ask(traced, traceparent)
    assert (span.parent_id, span.links) == ("", [])


def test_a_request_without_a_known_token_gets_a_trace_of_its_own(traced: TracedGateway) -> None:
    traced.trust()
    span = ask(traced, INCOMING["traceparent"], token="planted")
    assert (span.parent_id, span.links, span.is_error) == ("", [], False), "a refusal is no error of the gateway"
    assert span.attributes["http.response.status_code"] == 401


def test_a_request_has_the_attributes_of_http_with_the_path_of_its_route(traced: TracedGateway) -> None:
    reply = traced.gateway.send("GET", "/v1/operators/planted", headers={"SPASS-User-Id": "ada"})
    (span,) = traced.spans()
    assert (span.name, span.kind) == ("GET /v1/operators/{operator_id}", "SERVER")
    assert span.attributes == {
        "spass.tenant": "demo",
        "spass.request_id": reply.headers["spass-request-id"],
        "http.request.method": "GET",
        "http.route": "/v1/operators/{operator_id}",
        "url.path": "/v1/operators/{operator_id}",
        "url.scheme": "https",
        "http.response.status_code": 404,
    }


def test_a_head_request_is_a_head_request_in_its_span(traced: TracedGateway) -> None:
    traced.gateway.send("HEAD", "/v1/models")
    (span,) = traced.spans()
    assert (span.name, span.attributes["http.request.method"]) == ("HEAD /v1/models", "HEAD")


def test_what_belongs_to_no_sample_is_sent_if_it_failed(traced: TracedGateway) -> None:
    traced.export(traced.recorder.url, sample=0.0)
    assert chat(traced.gateway).status == 200
    assert traced.spans() == []
    traced.gateway.model.failure = AttemptFailed("planted")
    assert chat(traced.gateway).status >= 500
    spans = {span.name: span for span in traced.spans()}
    assert {name for name, span in spans.items() if span.is_error} == {
        "POST /a1/agents/{name}/chat",
        "invoke_agent coder",
        "chat small",
    }
    assert {span.attributes["error.type"] for span in spans.values()} == {"upstream_error"}
    streamed = chat(traced.gateway, stream=True)
    assert (streamed.status, {span.name for span in traced.spans() if span.is_error}) == (200, {*spans})
    traced.gateway.model.failure, traced.gateway.model.script = (
        None,
        in_turn([calls(("calculator", {"expression": "1/0"})), "No."]),
    )
    assert chat(traced.gateway).status == 200
    assert [span.name for span in traced.spans() if span.is_error] == ["execute_tool calculator"]


def chat(gateway: Gateway, **fields: object) -> Reply:
    return gateway.send("POST", "/a1/agents/coder/chat", body={"message": "Hi", **fields})


def test_a_recurring_schedule_gives_each_run_a_trace_of_its_own(traced: TracedGateway) -> None:
    traced.trust()
    gateway = traced.gateway
    body = {"name": "a", "agent": "coder", "schedule": {"expression": "rate(1 hour)", "input": "Go."}}
    assert gateway.send("POST", "/v1/managed-agents", headers=INCOMING, body=body).status == 201
    (request,) = traced.spans()
    (entry,) = traced.aws.scheduler.entries.values()
    for hour in (8, 9):
        tick(gateway, entry, f"2030-01-31T0{hour}:00:00Z")
    roots = [span for span in traced.spans() if span.name == "process runs"]
    assert [span.links for span in roots] == [[(TRACE, request.id)]] * 2
    assert len({TRACE, *(span.trace_id for span in roots)}) == 3


def test_an_entry_of_a_schedule_is_the_same_with_and_without_a_trace(traced: TracedGateway) -> None:
    """The sweep would write an entry that differs, and so begin the interval of the schedule again."""
    body = {"name": "a", "agent": "coder", "schedule": {"expression": "rate(1 hour)", "input": "Go."}}
    assert traced.gateway.send("POST", "/v1/managed-agents", body=body).status == 201
    swept: Any = traced.gateway.work(sweep.work, {})
    assert swept["schedules"] == 0
    assert traced.aws.scheduler.updates == 0


def test_a_queued_run_continues_the_trace_of_its_request(traced: TracedGateway) -> None:
    gateway = traced.gateway
    agent = gateway.send("POST", "/v1/managed-agents", body={"name": "a", "agent": "coder"}).json["id"]
    traced.spans()
    assert gateway.send("POST", f"/v1/managed-agents/{agent}/run", body={"input": "Go."}).status == 202
    (body,) = traced.messages
    record = {"messageId": "m1", "body": body, "attributes": {"ApproximateReceiveCount": "1"}}
    assert gateway.work(runs.work, {"Records": [record]}) == {"batchItemFailures": []}
    spans = traced.spans()
    assert tree_of(spans, "") == {"POST /v1/managed-agents/{agent_id}/run": {"process runs": DELEGATED}}
    (process,) = [span for span in spans if span.kind == "CONSUMER"]
    assert process.attributes["messaging.destination.name"] == "runs"
    assert len({span.trace_id for span in spans}) == 1


class HangingRecorder:
    """An exporter that does not answer. ``sent`` are the messages that the server had sent when the spans arrived."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.outgoing: list[Message] = []
        self.sent: list[list[Message]] = []

    def receive(self, _: HttpRequest) -> None:
        self.sent.append([*self.outgoing])
        self.over.wait(30)


async def request_over_asgi(app: Any, target: str, body: object, outgoing: list[Message]) -> None:
    incoming: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    left = asyncio.Event()

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        outgoing.append(message)

    headers = {"authorization": "Bearer demo-token", "spass-user-id": "ada", "content-type": "application/json"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "path": target,
        "raw_path": target.encode(),
        "root_path": "",
        "scheme": "https",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "buffered"])
def test_an_exporter_that_hangs_delays_no_streamed_byte(
    traced: TracedGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: bool
) -> None:
    monkeypatch.setattr(tracer, "STREAMED_SECONDS", 0.6)
    monkeypatch.setattr(tracer, "BUFFERED_SECONDS", 0.5)
    exporter = HangingRecorder()
    with serve(exporter.receive) as url:
        traced.export(url)
        app = stream_app(chat_route.router, traced.gateway.services)
        body = {"message": "Hi", "stream": stream}
        traced.gateway.run(request_over_asgi(app, CHAT, body, exporter.outgoing))
        exporter.over.set()
        traced.gateway.run(traced.close())
    (sent,) = exporter.sent
    *parts, last = exporter.outgoing
    assert last["more_body"] is False if stream else not last.get("more_body")
    assert sent == parts, "a stream has only its end left, and another answer its body"
    assert last["body"] == b"" if stream else json.loads(last["body"])["message"]["content"] == "The answer of boss."
    lines = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line.get("event") == "spans_not_sent"]
    assert [line["why"] for line in lines] == [f"no answer within {0.6 if stream else 0.5} s"]


def test_a_client_that_leaves_a_turn_does_not_lose_its_spans(traced: TracedGateway) -> None:
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Hi"}]}
    traced.gateway.leave("/c1/agents/boss/chat", {}, body)
    assert tree_of(traced.spans(), "") == {
        "POST /c1/agents/{name}/chat": {"invoke_agent boss": {**TURN, "execute_tool rag_query": {}}}
    }


def test_a_client_that_leaves_is_no_error_that_is_always_sent(traced: TracedGateway) -> None:
    traced.gateway.leave("/a1/agents/boss/chat", {}, {"message": "Hi", "stream": True})
    spans = traced.spans()
    assert "invoke_agent boss" in {span.name for span in spans}
    assert [span.name for span in spans if span.is_error] == []


def test_without_an_endpoint_nothing_is_traced_and_no_message_carries_a_trace(
    traced: TracedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = traced.gateway.services
    services.settings = replace(services.settings, traces=None)
    services.__dict__.pop("tracer", None)
    monkeypatch.setattr(Trace, "__init__", None)
    agent = traced.gateway.send("POST", "/v1/managed-agents", headers=INCOMING, body={"name": "a", "agent": "coder"}).json["id"]
    assert traced.gateway.send("POST", f"/v1/managed-agents/{agent}/run", headers=INCOMING, body={"input": "Go."}).status == 202
    assert ["traceparent" in json.loads(body) for body in traced.messages] == [False]
    assert "traceparent" not in json.dumps(traced.gateway.items(), default=str)
