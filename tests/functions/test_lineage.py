"""GET …/lineage, and the tool lineage_search inside and outside a session."""

from collections.abc import Sequence
from typing import Any

import pytest

from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.messages import FinishReason, Role
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import calls
from tests.functions.gateway import Gateway
from tests.unit.sessions.session_chains import ChainBuilder

SESSION = "/a1/agents/plain/sessions/{}"


@pytest.fixture
def chains(gateway: Gateway) -> ChainBuilder:
    return ChainBuilder(gateway.services.aws.for_tenant(TenantId("demo")), UserId("ada"), AgentName("plain"))


@pytest.fixture
def members(gateway: Gateway, chains: ChainBuilder) -> list[SessionId]:
    return gateway._loop.run_until_complete(chains.chain(3))


def test_the_lineage_lists_members_as_sessions_and_deleted_ones_by_id(gateway: Gateway, members: list[SessionId]) -> None:
    sessions = [gateway.send("GET", SESSION.format(member)).json for member in members]
    answer = gateway.send("GET", f"{SESSION.format(members[1])}/lineage").json
    assert answer.keys() == {"session_id", "backward", "forward", "summaries"}
    assert (answer["session_id"], answer["backward"], answer["forward"]) == (members[1], [sessions[0]], [sessions[2]])
    first, second = answer["summaries"]
    assert (first["source_session_id"], first["successor_session_id"]) == (members[0], members[1])
    assert (first["text"], second["text"]) == ("summary 1", "summary 2")
    assert gateway.send("DELETE", SESSION.format(members[1])).json == {"deleted": True}
    answer = gateway.send("GET", f"{SESSION.format(members[2])}/lineage").json
    assert answer["backward"] == [{"id": members[1], "deleted": True}, sessions[0]]
    assert answer["summaries"] == [second]
    assert gateway.send("GET", f"{SESSION.format(members[1])}/lineage").code == "session_not_found"


def test_a_summary_is_returned_unchanged(gateway: Gateway, chains: ChainBuilder) -> None:
    text = 'line\u2028 "quoted" \U0001f993'

    async def compact() -> SessionId:
        return await chains.compact((await chains.chain(1))[0], text)

    session = gateway._loop.run_until_complete(compact())
    (summary,) = gateway.send("GET", f"{SESSION.format(session)}/lineage").json["summaries"]
    assert summary["text"] == text


def answer_from_lineage(request: ChatRequest, _: CallContext) -> Sequence[ChatDelta]:
    """Write summaries without content. Call lineage_search if the user asks about the zebra."""
    offered = {tool.name for tool in request.tools}
    if "lineage_search" in offered and request.messages[-1].role is Role.USER and "zebra" in request.messages[-1].content:
        return calls(("lineage_search", {"query": "zebra"}))
    return [ChatDelta("They talked.", finish_reason=FinishReason.STOP)]


def test_an_agent_finds_messages_compacted_in_this_turn_and_before(gateway: Gateway) -> None:
    (gateway.services.settings.agents / "forgetful.yaml").write_text("name: forgetful\nmodel: small\ntools: [lineage_search]\n")
    gateway.model.script = answer_from_lineage
    path = "/a1/agents/forgetful/sessions"
    first = gateway.send("POST", path, body={"compact_strategy": "auto", "compact_keep_last_n": 0}).json["id"]

    def say(session: str, message: str) -> Any:
        return gateway.send("POST", f"{path}/{session}/messages", body={"message": message}).json

    say(first, f"Marty is a zebra. {'x ' * 13_000}")
    session = first
    for _ in range(2):
        turn = say(session, "Who is the zebra?")
        session = turn["session_id"]
        assert session != first
        (call,) = turn["tool_calls"]
        assert [(one["session_id"], one["seq"]) for one in call["result"]["results"]] == [(first, 1)]
        assert call["result"]["results"][0]["content"].startswith("Marty is a zebra.")
        assert turn["message"]["content"] == "They talked."


def test_lineage_search_outside_a_session_returns_an_error(gateway: Gateway) -> None:
    listed = {tool["function"]["name"] for tool in gateway.send("GET", "/v1/tools").json["tools"]}
    assert "lineage_search" in listed
    answer = gateway.send("POST", "/v1/tools/execute", body={"name": "lineage_search", "arguments": {"query": "zebra"}})
    assert answer.status == 200
    assert answer.json["result"]["error"]["code"] == "no_session"
    assert answer.json["result"]["error"]["code"] == "no_session"
