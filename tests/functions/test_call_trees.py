"""Call trees: the audit of a request on every route, the headers of sub-calls, and gateways that call gateways."""

import json
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from spass.core.ids import TenantId
from spass.core.messages import FinishReason, TokenUsage
from spass.metering.usage import UsageQuery, usage
from spass.models.providers.openai_compatible import OpenAi
from spass.models.router import Router
from spass.models.types import ChatDelta
from spass.tenancy.config import BackendConfig
from spass.testing.model import calls
from tests.functions.gateway import CONFIG, Gateway, Reply, find_route

CHAT = "/v1/chat/completions"
QUESTION = {"model": "small", "messages": [{"role": "user", "content": "Which gate?"}]}
TOOL_CALL = calls(("rag_query", {"index_id": "notes", "query": "gate"}))
ANSWER = [ChatDelta("The gate.", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]

Shape = list[tuple[str, Any]]
"""The tool or kind of each call, with its sub-calls."""


class RecordingGateway:
    """A gateway whose model answers with ``turns``. ``headers`` has the headers of each model call."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.turns: deque[Sequence[ChatDelta]] = deque()
        gateway.model.contexts.clear()
        gateway.model.script = lambda request, context: self.turns.popleft() if self.turns else ANSWER

    @property
    def headers(self) -> list[tuple[str, str]]:
        headers_of_calls = (context.headers for context in self.gateway.model.contexts)
        return [(headers["SPASS-Caller-Depth"], headers["SPASS-Parent-Request-Id"]) for headers in headers_of_calls]

    def ask(self, target: str, body: object, *turns: Sequence[ChatDelta], **headers: str) -> Reply:
        self.turns.extend(turns)
        self.gateway.model.contexts.clear()
        reply = self.gateway.send(
            "POST", target, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        assert reply.status < 300, reply.text
        return reply

    def calls(self, reply: Reply) -> Any:
        return get_calls(self.gateway, reply.headers["spass-request-id"])


def get_calls(gateway: Gateway, request_id: str) -> Any:
    return gateway.send("GET", f"/v1/audit/{request_id}", token="demo-admin-token").json["calls"]


def shape(calls: Any) -> Shape:
    return [(call.get("tool") or call["kind"], shape(call["calls"])) for call in calls]


def flatten(calls: Any) -> list[Any]:
    return [entry for call in calls for entry in (call, *flatten(call["calls"]))]


@pytest.fixture
def recording_gateway(gateway: Gateway) -> RecordingGateway:
    tools = "defaults: {embedding_model: mini-embed, tools_enabled_default: [rag_query]}"
    gateway.services.settings.config.write_text(CONFIG.replace("defaults: {embedding_model: mini-embed}", tools))
    notes = {"documents": [{"id": "a", "text": "The gate was built in 1791."}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body=notes).status == 200
    return RecordingGateway(gateway)


TURN: Shape = [("chat", []), ("rag_query", [("embedding", [])]), ("chat", [])]


@pytest.mark.parametrize(
    ("target", "body", "turns", "expected"),
    [
        (CHAT, QUESTION, (TOOL_CALL, ANSWER), TURN),
        (CHAT, QUESTION | {"stream": True, "stream_options": {"include_usage": True}}, (TOOL_CALL, ANSWER), TURN),
        (CHAT, QUESTION | {"model": "agent/counting"}, (TOOL_CALL, ANSWER), TURN),
        (CHAT, QUESTION | {"model": "agent/counting", "stream": True}, (TOOL_CALL, ANSWER), TURN),
        (CHAT, QUESTION | {"model": "agent/reading", "stream": True}, (), [("embedding", []), ("chat", [])]),
        ("/a1/agents/counting/chat", {"message": "Which gate?"}, (TOOL_CALL, ANSWER), TURN),
        ("/v1/ask", {"input": "Which gate?", "tools": ["rag_query"], "model": "small"}, (TOOL_CALL, ANSWER), TURN),
        ("/v1/ask", {"input": "Which gate?", "agent": "reading"}, (), [("embedding", []), ("chat", [])]),
        ("/a1/agents/reading/chat", {"message": "Which gate?"}, (), [("embedding", []), ("chat", [])]),
        ("/v1/embeddings", {"model": "mini-embed", "input": ["a", "b"]}, (), [("embedding", [])]),
        (
            "/v1/tools/execute",
            {"name": "rag_query", "arguments": {"index_id": "notes", "query": "gate"}},
            (),
            [("rag_query", [("embedding", [])])],
        ),
        ("/a1/rag/indices/notes/query", {"query": "gate"}, (), [("embedding", [])]),
        ("/a1/rag/indices/notes/documents/append", {"documents": [{"id": "b", "text": "b"}]}, (), [("embedding", [])]),
    ],
)
def test_each_sub_call_is_below_its_call(
    recording_gateway: RecordingGateway, target: str, body: object, turns: Sequence[Sequence[ChatDelta]], expected: Shape
) -> None:
    reply = recording_gateway.ask(target, body, *turns, SPASS_Parent_Request_Id="req_elsewhere")
    calls = recording_gateway.calls(reply)
    assert shape(calls) == expected
    assert {call["origin_request_id"] for call in flatten(calls)} == {"req_elsewhere"}
    assert {call["outer_request_id"] for call in flatten(calls)} == {reply.headers["spass-request-id"]}
    # The parent that a provider gets is the record of the call itself.
    models = [call for call in flatten(calls) if call["kind"] != "tool"]
    assert [parent for _, parent in recording_gateway.headers] == [call["request_id"] for call in models]
    # The cost of the request is the sum of its calls.
    assert total_cost(reply) == (len(models), sum(Decimal(call["cost_usd"]) for call in models), "catalog")


def total_cost(reply: Reply) -> tuple[int, Decimal, str]:
    """Return sub-calls, US dollars and source, from the headers or from the last chunk of the stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        cost = {name: reply.headers[f"spass-cost-{name.replace('_', '-')}"] for name in ("sub_calls", "usd", "source")}
    else:
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        cost = chunks[-1]["usage"]["cost_details"]
    return int(cost["sub_calls"]), Decimal(cost["usd"]), cost["source"]


def test_a_turn_of_a_session_is_one_tree(recording_gateway: RecordingGateway) -> None:
    session = recording_gateway.gateway.send("POST", "/a1/agents/counting/sessions", body={}).json["id"]
    reply = recording_gateway.ask(f"/a1/agents/counting/sessions/{session}/messages", {"message": "?"}, TOOL_CALL, ANSWER)
    calls = recording_gateway.calls(reply)
    assert shape(calls) == TURN
    assert {call["session"] for call in flatten(calls)} == {session}


@pytest.mark.parametrize(
    ("target", "body"), [(CHAT, QUESTION), ("/a1/agents/counting/chat", {"message": "?"})], ids=["a completion", "an agent"]
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_sub_call_has_the_depth_of_its_request_plus_one(
    recording_gateway: RecordingGateway, target: str, body: object, depth: int
) -> None:
    recording_gateway.ask(target, body, TOOL_CALL, ANSWER, SPASS_Caller_Depth=str(depth))
    assert [depth for depth, _ in recording_gateway.headers] == [str(depth + 1)] * 3


@pytest.mark.parametrize("target", [CHAT, "/a1/agents/counting/chat", "/v1/ask", "/v1/tools/execute", "/v1/embeddings"])
def test_a_request_of_depth_three_is_refused_without_a_model_call(recording_gateway: RecordingGateway, target: str) -> None:
    reply = recording_gateway.gateway.send("POST", target, headers={"SPASS-Caller-Depth": "3"}, body={})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")
    assert recording_gateway.headers == []
    assert "spass-cost-usd" not in reply.headers


def chain_gateways(gateway: Gateway, front: Gateway) -> None:
    """Make ``gateway`` the provider of the models of ``front``."""
    route = find_route("POST", CHAT)
    assert route is not None
    backend = BackendConfig.model_validate({"provider": "openai", "base_url": "https://gateway.test/v1"})
    transport = httpx.ASGITransport(gateway._function(route))
    config = front.services.config
    router = Router(
        config.llm, config.models, lambda _: None, provider_of=lambda *_: OpenAi(backend, "demo-token", transport=transport)
    )
    front.services.__dict__["router"] = router


def total_usage(gateway: Gateway) -> Any:
    store = gateway.services.aws.for_tenant(TenantId("demo"))
    return gateway._loop.run_until_complete(usage(store, UsageQuery())).total.to_dict()


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_behind_a_gateway_records_the_origin_of_a_call(gateway: Gateway, tmp_path: Path, stream: bool) -> None:
    front = gateway.reconfigure(tmp_path / "front", "retries: 0", "retries: 0")
    chain_gateways(gateway, front)
    reply = front.send("POST", CHAT, body=QUESTION | {"stream": stream})
    assert reply.status == 200
    (call,) = get_calls(front, reply.headers["spass-request-id"])
    (below,) = [item for item in gateway.items() if item.get("origin_request_id") == call["request_id"]]
    assert below["outer_request_id"] != call["outer_request_id"]
    # The cost of the outer call is the cost that the inner gateway reports.
    assert (call["cost_source"], call["cost_usd"]) == ("upstream", below["cost_usd"])
    assert total_usage(front)["requests"] == 2


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_calls_itself_stops_at_depth_three_without_cost(
    gateway: Gateway, tmp_path: Path, stream: bool, retries: int
) -> None:
    ring = gateway.reconfigure(tmp_path / "ring", "retries: 0", f"retries: {retries}")
    chain_gateways(ring, ring)
    reply = ring.send("POST", CHAT, body=QUESTION | {"stream": stream})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")
    (call,) = get_calls(ring, reply.headers["spass-request-id"])
    assert (call["status"], call["attempts"], call["cost_usd"]) == ("recursion_depth_exceeded", 1, "0")
    records = ring.records()
    assert len(records) == 3
    origins = {record.get("origin_request_id") for record in records}
    assert origins - {None} < {record["request_id"] for record in records}
    assert total_usage(ring)["requests"] == 0
