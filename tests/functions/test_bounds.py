"""A tenant's bounds: which requests have a place, until when, and how a request beyond a bound is refused."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from infra.routes import ROUTES, Permission
from spass.agents.registry import AgentRegistry
from spass.agents.spec import file_model
from spass.core.ids import TenantId
from spass.core.messages import FinishReason
from spass.limits.places import PlaceKind
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from spass.testing.model import Answer, calls
from tests.functions.gateway import Gateway, find_route
from tests.functions.managed_agents import ADA, AGENTS, TARGETS, ManagedClient

QUESTION = {"model": "small", "messages": [{"role": "user", "content": "Hi."}]}
CHAT, C1 = "/v1/chat/completions", "/c1/agents/plain/chat"
TURN = {"message_id": "m1", "messages": QUESTION["messages"]}
SESSION, APPROVAL, MANAGED = (f"{kind}_01mcc6xgkc2hg9aybh4e41vyx5" for kind in ("ses", "apr", "agt"))
INDEX = "/a1/rag/indices/notes"
DOCUMENTS = {"documents": [{"id": "a", "text": "alpha"}]}
TURNS: dict[tuple[str, str], Any] = {
    ("POST", CHAT): QUESTION,
    ("POST", "/v1/embeddings"): {"model": "mini-embed", "input": "alpha"},
    ("POST", "/v1/ask"): {"agent": "simple", "model": "small", "input": "Hi."},
    ("POST", "/v1/tools/execute"): {"name": "calculator", "arguments": {"expression": "1 + 1"}},
    ("POST", "/a1/agents/plain/chat"): {"message": "Hi."},
    ("POST", f"/a1/agents/plain/sessions/{SESSION}/messages"): {"message": "Hi."},
    ("POST", f"/a1/agents/plain/sessions/{SESSION}/compact"): None,
    ("POST", C1): TURN,
    ("POST", "/c1/agents/plain/job_card"): {"title": "A job", "task": "Do it."},
    ("POST", f"/a1/approvals/{APPROVAL}"): {"decision": "deny"},
    ("POST", f"{INDEX}/documents"): DOCUMENTS,
    ("POST", f"{INDEX}/documents/append"): DOCUMENTS,
    ("PATCH", f"{INDEX}/documents/a"): {"text": "beta"},
    ("POST", f"{INDEX}/query"): {"query": "alpha"},
    ("POST", f"/v1/managed-agents/{MANAGED}/messages"): {"content": "Hi.", "stream": True},
}
"""A request of each kind that calls models, embeds, runs code or waits for a compaction, with its body."""
CALLS = frozenset({Permission.MODELS, Permission.COMPACTIONS_SEND})


@pytest.fixture
def bounded(gateway: Gateway, tmp_path: Path) -> Gateway:
    """A gateway that allows one turn and one follower to each tenant."""
    return gateway.reconfigure(tmp_path / "bounded", "tenants:\n", "limits: {turns: 1, followers: 1}\ntenants:\n")


async def take(gateway: Gateway, kind: PlaceKind = "turns") -> None:
    """Take a place of the tenant ``demo``, as a request that is in progress."""
    await gateway.services.places.take(gateway.services.aws.for_tenant(TenantId("demo")), kind)


def in_progress(gateway: Gateway, kind: str = "TURNS") -> int:
    """Return how many places of the tenant ``demo`` are taken."""
    return sum(item.get("active", 0) for item in gateway.items() if item["pk"] == f"T#demo#LIMIT#{kind}#0")


def test_every_route_that_may_call_a_model_has_an_example_here() -> None:
    rows = {(route.method, route.path) for route in ROUTES if CALLS & route.permissions}
    found = {(route.method, route.path) for method, path in TURNS if (route := find_route(method, path))}
    assert found == rows


@pytest.mark.parametrize(("method", "path"), TURNS)
def test_a_turn_beyond_the_bound_is_refused_in_one_call(bounded: Gateway, method: str, path: str) -> None:
    bounded.run(take(bounded))
    with inject(FaultPlan()) as plan:
        refused = bounded.send(method, path, body=TURNS[method, path])
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "rate_limited", "1")
    assert refused.json["error"]["details"] == {"of": "tenant", "limit": "turns", "in_use": 1, "allowed": 1}
    assert [call.operation for call in plan.calls] == ["UpdateItem"]
    assert bounded.model.requests == []
    other = bounded.send("POST", CHAT, token="other-token", body=QUESTION)
    assert other.status == 200, "the bound of one tenant is not that of another one"


def test_what_calls_no_model_needs_no_place(bounded: Gateway, client: ManagedClient) -> None:
    agent = client.create(model="small")
    bounded.run(take(bounded))
    assert bounded.send("GET", "/v1/models").status == 200
    message = bounded.send("POST", f"/v1/managed-agents/{agent}/messages", headers=ADA, body={"content": "Hi."})
    assert message.status == 202, message.text
    prefer = {"Prefer": "respond-async"}
    compaction = bounded.send("POST", f"/a1/agents/plain/sessions/{SESSION}/compact", headers=prefer)
    assert compaction.code == "session_not_found", "a compaction for which nobody waits"
    invalid = bounded.send("POST", CHAT, body={"model": "small"})
    assert (invalid.status, invalid.code) == (400, "invalid_request"), "a mistake is named first"


@pytest.mark.parametrize("body", [QUESTION, QUESTION | {"stream": True}, QUESTION | {"model": "unknown"}])
def test_a_turn_has_a_place_until_its_end(bounded: Gateway, body: Any) -> None:
    for _ in range(2):
        assert bounded.send("POST", CHAT, body=body).status in (200, 404)
        assert in_progress(bounded) == 0


@pytest.mark.parametrize(("path", "body"), [(CHAT, QUESTION), (CHAT, QUESTION | {"stream": True}), (C1, TURN)])
def test_a_place_is_free_before_the_last_part_of_the_answer(bounded: Gateway, path: str, body: Any) -> None:
    """A function in AWS stands still after the last part, and would keep the place until its lease ends."""
    at_last_part: list[int] = []

    def look(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            at_last_part.append(in_progress(bounded))

    bounded.watch("POST", path, look)
    assert bounded.send("POST", path, body=body).status == 200
    assert at_last_part == [0]


def test_a_turn_costs_one_write_more_at_its_start_and_one_at_its_end(gateway: Gateway) -> None:
    gateway.send("POST", CHAT, body=QUESTION)
    with inject(FaultPlan()) as plan:
        assert gateway.send("POST", CHAT, body=QUESTION).status == 200
    assert sum("LIMIT#TURNS" in str(call.parameters) for call in plan.calls) == 2
    assert sum("LIMIT" in str(call.parameters) for call in plan.calls) == 2


def test_a_delegate_needs_no_place_of_its_own(bounded: Gateway) -> None:
    def answer(request: ChatRequest, _: CallContext) -> Answer:
        taken.append(in_progress(bounded))
        is_first = request.messages[0].content.startswith("boss") and request.messages[-1].tool_call_id is None
        return calls(("delegate", {"agent": "helper", "task": "Help."})) if is_first else "Done."

    taken: list[int] = []
    spec = {"model": "small", "workspace": "default"}
    boss = spec | {"name": "boss", "system_prompt": "boss", "tools": ["delegate"], "delegates": ["helper"]}
    agents = (boss, spec | {"name": "helper", "system_prompt": "helper"})
    bounded.services.agents = AgentRegistry(tuple(file_model("orchestrator").model_validate(agent).spec() for agent in agents))
    bounded.model.script = answer
    assert bounded.send("POST", "/a1/agents/boss/chat", body={"message": "Hi."}).status == 200
    assert taken == [1, 1, 1]
    assert in_progress(bounded) == 0


@pytest.mark.parametrize(("path", "body"), [(CHAT, QUESTION | {"stream": True}), (C1, TURN)])
def test_a_stream_whose_client_has_left_has_its_place_until_the_work_ends(bounded: Gateway, path: str, body: Any) -> None:
    taken: list[int] = []

    async def answer() -> AsyncGenerator[ChatDelta, None]:
        for word in ("One", "two", "three"):
            yield ChatDelta(word)
            await asyncio.sleep(0.05)
            taken.append(in_progress(bounded))
        yield ChatDelta(finish_reason=FinishReason.STOP)

    bounded.model.script = lambda *_: answer()
    bounded.leave(path, {} if path == C1 else {"Idempotency-Key": "k1"}, body)
    assert taken == [1, 1, 1]
    assert in_progress(bounded) == 0


def test_a_repeated_turn_follows_its_stream_in_a_place_of_followers(bounded: Gateway) -> None:
    first, again = (bounded.send("POST", C1, body=TURN) for _ in range(2))
    assert first.status == again.status == 200
    assert len(bounded.model.requests) == 1
    assert (in_progress(bounded), in_progress(bounded, "FOLLOWERS")) == (0, 0)
    bounded.run(take(bounded, "followers"))
    refused = bounded.send("POST", C1, body=TURN)
    assert refused.json["error"]["details"] == {"of": "tenant", "limit": "followers", "in_use": 1, "allowed": 1}
    assert in_progress(bounded) == 0


RUN = "run_01mcc6xgkc2hg9aybh4e41vyx5"


@pytest.mark.parametrize("path", [f"{C1}/m1", f"/v1/managed-agents/{MANAGED}/runs/{RUN}/stream"])
def test_a_follower_beyond_the_bound_is_refused_in_one_call(bounded: Gateway, path: str) -> None:
    bounded.send("POST", C1, body=TURN)
    bounded.run(take(bounded, "followers"))
    with inject(FaultPlan()) as plan:
        refused = bounded.send("GET", path)
    assert refused.json["error"]["details"] == {"of": "tenant", "limit": "followers", "in_use": 1, "allowed": 1}
    assert [call.operation for call in plan.calls] == ["UpdateItem"], "it reads nothing of the stream"
    invalid = bounded.send("GET", path, headers={"Last-Event-ID": "x"})
    assert (invalid.status, invalid.code) == (400, "invalid_request"), "a mistake is named first"


def test_a_follower_of_no_stream_gives_its_place_back(bounded: Gateway) -> None:
    for _ in range(2):
        assert bounded.send("GET", f"{C1}/unknown").status == 404
    assert in_progress(bounded, "FOLLOWERS") == 0


def test_a_schedule_beyond_the_bound_is_refused_and_stores_nothing(client: ManagedClient, tmp_path: Path) -> None:
    bounded = client.gateway.reconfigure(tmp_path / "bounded", "  - id: demo\n", "  - id: demo\n    limits: {schedules: 2}\n")
    bounded.services.settings = replace(bounded.services.settings, job_targets=TARGETS)
    client.gateway = bounded
    schedule = {"expression": "rate(1 hour)", "input": "What is new?"}
    first, plain = client.create(schedule=schedule), client.create()
    client.create(schedule=schedule)
    before = bounded.stored()
    body = {"name": "a", "agent": "simple", "schedule": schedule}
    for method, path, sent in (("POST", "", body), ("PATCH", f"/{plain}", {"schedule": schedule})):
        refused = client.send(method, path, sent)
        assert (refused.status, refused.code, refused.json["error"]["param"]) == (409, "too_many_schedules", "schedule")
        assert refused.json["error"]["details"] == {"of": "tenant", "limit": "schedules", "in_use": 2, "allowed": 2}
    assert bounded.stored() == before
    assert client.send("PATCH", f"/{first}", {"schedule": schedule | {"expression": "rate(2 hours)"}}).status == 200
    assert client.send("PATCH", f"/{first}", {"schedule": schedule | {"enabled": False}}).status == 200
    assert client.send("PATCH", f"/{plain}", {"schedule": schedule}).status == 200


def test_schedules_that_are_stored_at_the_same_time_stay_within_the_bound(client: ManagedClient, tmp_path: Path) -> None:
    bounded = client.gateway.reconfigure(tmp_path / "bounded", "  - id: demo\n", "  - id: demo\n    limits: {schedules: 2}\n")
    bounded.services.settings = replace(bounded.services.settings, job_targets=TARGETS)
    body = {"name": "a", "agent": "simple", "schedule": {"expression": "rate(1 hour)", "input": "Go."}}
    replies = bounded.send_together(bounded.send_async("POST", AGENTS, headers=ADA, body=body) for _ in range(6))
    assert sorted(reply.status for reply in replies) == [201] * 2 + [409] * 4
    assert isinstance(bounded.aws, MemoryAws)
    assert len(bounded.aws.scheduler.entries) == 2


def test_the_bound_of_a_tenants_entry_counts(gateway: Gateway, tmp_path: Path) -> None:
    own = gateway.reconfigure(tmp_path / "own", "  - id: demo\n", "  - id: demo\n    limits: {turns: 2}\n")
    own.run(take(own))
    assert own.send("POST", CHAT, body=QUESTION).status == 200
    own.run(take(own))
    assert own.send("POST", CHAT, body=QUESTION).json["error"]["details"]["allowed"] == 2
