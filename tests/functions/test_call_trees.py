"""What calls what, and how deep: the audit's tree of a request on every route, the headers of every sub-call, and gateways that
call gateways."""

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
from spass.llm.providers.openai import OpenAi
from spass.llm.router import Router
from spass.llm.types import ChatDelta, ToolCallDelta
from spass.metering.usage import UsageQuery, usage
from spass.tenancy.config import BackendConfig
from tests.functions.gateway import CONFIG, Gateway, Reply, find_route

CHAT = "/v1/chat/completions"
QUESTION = {"model": "small", "messages": [{"role": "user", "content": "Which gate?"}]}
LOOKS_UP = [
    ChatDelta(tool_calls=(ToolCallDelta(0, "c1", "rag_query", json.dumps({"index_id": "notes", "query": "gate"})),)),
    ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(10, 5)),
]
ANSWERS = [ChatDelta("The gate.", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))]

Shape = list[tuple[str, Any]]
"""Of each call what was called, and the calls that were made for it."""


class RecordingGateway:
    """A gateway whose model answers turn by turn and which remembers with which headers it was asked."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.turns: deque[Sequence[ChatDelta]] = deque()
        gateway.model.contexts.clear()
        gateway.model.script = lambda request, context: self.turns.popleft() if self.turns else ANSWERS

    @property
    def headers(self) -> list[tuple[str, str]]:
        asked = (context.headers for context in self.gateway.model.contexts)
        return [(headers["SPASS-Caller-Depth"], headers["SPASS-Parent-Request-Id"]) for headers in asked]

    def ask(self, target: str, body: object, *turns: Sequence[ChatDelta], **headers: str) -> Reply:
        self.turns.extend(turns)
        self.gateway.model.contexts.clear()
        reply = self.gateway.send(
            "POST", target, body=body, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        assert reply.status < 300, reply.text
        return reply

    def calls(self, reply: Reply) -> Any:
        return calls_of(self.gateway, reply.headers["spass-request-id"])


def calls_of(gateway: Gateway, request_id: str) -> Any:
    return gateway.send("GET", f"/v1/audit/{request_id}", token="demo-admin-token").json["calls"]


def shape(calls: Any) -> Shape:
    return [(call.get("tool") or call["kind"], shape(call["calls"])) for call in calls]


def flat(calls: Any) -> list[Any]:
    return [one for call in calls for one in (call, *flat(call["calls"]))]


@pytest.fixture
def recording_gateway(gateway: Gateway) -> RecordingGateway:
    tools = "defaults: {embedding_model: mini-embed, tools_enabled_default: [rag_query]}"
    gateway.services.settings.config.write_text(CONFIG.replace("defaults: {embedding_model: mini-embed}", tools))
    notes = {"documents": [{"id": "a", "text": "The gate was built in 1791."}]}
    assert gateway.send("POST", "/a1/rag/indices/notes/documents", body=notes).status == 200
    return RecordingGateway(gateway)


TURN: Shape = [("chat", []), ("rag_query", [("embedding", [])]), ("chat", [])]


@pytest.mark.parametrize(
    ("target", "body", "turns", "wanted"),
    [
        (CHAT, QUESTION, (LOOKS_UP, ANSWERS), TURN),
        (CHAT, QUESTION | {"stream": True, "stream_options": {"include_usage": True}}, (LOOKS_UP, ANSWERS), TURN),
        ("/a1/agents/counting/chat", {"message": "Which gate?"}, (LOOKS_UP, ANSWERS), TURN),
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
def test_each_call_stands_below_what_it_was_made_for(
    recording_gateway: RecordingGateway, target: str, body: object, turns: Sequence[Sequence[ChatDelta]], wanted: Shape
) -> None:
    reply = recording_gateway.ask(target, body, *turns, SPASS_Parent_Request_Id="req_elsewhere")
    calls = recording_gateway.calls(reply)
    assert shape(calls) == wanted
    assert {call["origin_request_id"] for call in flat(calls)} == {"req_elsewhere"}
    assert {call["outer_request_id"] for call in flat(calls)} == {reply.headers["spass-request-id"]}
    # Whom a provider is told that it works for is the record of this very call.
    models = [call for call in flat(calls) if call["kind"] != "tool"]
    assert [parent for _, parent in recording_gateway.headers] == [call["request_id"] for call in models]
    # One bill, of all of them.
    assert bill(reply) == (len(models), sum(Decimal(call["cost_usd"]) for call in models), "catalog")


def bill(reply: Reply) -> tuple[int, Decimal, str]:
    """Sub-calls, dollars and source: in the headers, or in the last chunk that says what was used."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        cost = {name: reply.headers[f"spass-cost-{name.replace('_', '-')}"] for name in ("sub_calls", "usd", "source")}
    else:
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        cost = chunks[-1]["usage"]["cost_details"]
    return int(cost["sub_calls"]), Decimal(cost["usd"]), cost["source"]


def test_a_turn_of_a_session_is_one_tree(recording_gateway: RecordingGateway) -> None:
    session = recording_gateway.gateway.send("POST", "/a1/agents/counting/sessions", body={}).json["id"]
    reply = recording_gateway.ask(f"/a1/agents/counting/sessions/{session}/messages", {"message": "?"}, LOOKS_UP, ANSWERS)
    calls = recording_gateway.calls(reply)
    assert shape(calls) == TURN
    assert {call["session"] for call in flat(calls)} == {session}


@pytest.mark.parametrize(
    ("target", "body"), [(CHAT, QUESTION), ("/a1/agents/counting/chat", {"message": "?"})], ids=["a completion", "an agent"]
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_sub_call_stands_one_deeper_than_its_request(
    recording_gateway: RecordingGateway, target: str, body: object, depth: int
) -> None:
    recording_gateway.ask(target, body, LOOKS_UP, ANSWERS, SPASS_Caller_Depth=str(depth))
    assert [said for said, _ in recording_gateway.headers] == [str(depth + 1)] * 3


@pytest.mark.parametrize("target", [CHAT, "/a1/agents/counting/chat", "/v1/tools/execute", "/v1/embeddings"])
def test_at_the_third_call_nothing_is_read_asked_or_spent(recording_gateway: RecordingGateway, target: str) -> None:
    reply = recording_gateway.gateway.send("POST", target, headers={"SPASS-Caller-Depth": "3"}, body={})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")
    assert recording_gateway.headers == []
    assert "spass-cost-usd" not in reply.headers


def behind(gateway: Gateway, front: Gateway) -> None:
    """Puts ``gateway`` behind ``front``, as the provider of its models."""
    route = find_route("POST", CHAT)
    assert route is not None
    backend = BackendConfig.model_validate({"provider": "openai", "base_url": "https://gateway.test/v1"})
    transport = httpx.ASGITransport(gateway._function(route))
    config = front.services.config
    router = Router(
        config.llm, config.models, lambda _: None, provider_of=lambda *_: OpenAi(backend, "demo-token", transport=transport)
    )
    front.services.__dict__["router"] = router


def spent(gateway: Gateway) -> Any:
    store = gateway.services.aws.for_tenant(TenantId("demo"))
    return gateway._loop.run_until_complete(usage(store, UsageQuery())).total.to_dict()


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_behind_a_gateway_knows_which_call_led_to_it(gateway: Gateway, tmp_path: Path, stream: bool) -> None:
    front = gateway.reconfigure(tmp_path / "front", "retries: 0", "retries: 0")
    behind(gateway, front)
    reply = front.send("POST", CHAT, body=QUESTION | {"stream": stream})
    assert reply.status == 200
    (call,) = calls_of(front, reply.headers["spass-request-id"])
    (below,) = [item for item in gateway.items() if item.get("origin_request_id") == call["request_id"]]
    assert below["outer_request_id"] != call["outer_request_id"]
    # What the inner gateway says that it cost is the price of the outer's call.
    assert (call["cost_source"], call["cost_usd"]) == ("upstream", below["cost_usd"])
    assert spent(front)["requests"] == 2


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_is_its_own_provider_stops_at_the_third_call_for_free(
    gateway: Gateway, tmp_path: Path, stream: bool, retries: int
) -> None:
    ring = gateway.reconfigure(tmp_path / "ring", "retries: 0", f"retries: {retries}")
    behind(ring, ring)
    reply = ring.send("POST", CHAT, body=QUESTION | {"stream": stream})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")
    (call,) = calls_of(ring, reply.headers["spass-request-id"])
    assert (call["status"], call["attempts"], call["cost_usd"]) == ("recursion_depth_exceeded", 1, "0")
    records = ring.records()
    assert len(records) == 3
    origins = {record.get("origin_request_id") for record in records}
    assert origins - {None} < {record["request_id"] for record in records}
    assert spent(ring)["requests"] == 0
