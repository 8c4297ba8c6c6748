"""GET …/lineage, and what lineage_search is where nobody is in a session."""

import json

import pytest

from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.sessions import lineage
from tests.functions.gateway import Gateway
from tests.unit.sessions.chains import Chains

SESSION = "/a1/agents/plain/sessions/{}"


@pytest.fixture
def chains(gateway: Gateway) -> Chains:
    return Chains(gateway.services.aws.for_tenant(TenantId("demo")), UserId("ada"), AgentName("plain"))


@pytest.fixture
def members(gateway: Gateway, chains: Chains) -> list[SessionId]:
    return gateway._loop.run_until_complete(chains.chain(3))


def test_the_chain_is_told_as_the_sessions_themselves_and_without_the_deleted_ones(
    gateway: Gateway, members: list[SessionId]
) -> None:
    shown = [gateway.send("GET", SESSION.format(member)).json for member in members]
    told = gateway.send("GET", f"{SESSION.format(members[1])}/lineage").json
    assert told.keys() == {"session_id", "backward", "forward", "summaries"}
    assert (told["session_id"], told["backward"], told["forward"]) == (members[1], [shown[0]], [shown[2]])
    first, second = told["summaries"]
    assert (first["source_session_id"], first["successor_session_id"]) == (members[0], members[1])
    assert (first["text"], second["text"]) == ("summary 1", "summary 2")
    assert gateway.send("DELETE", SESSION.format(members[1])).json == {"deleted": True}
    told = gateway.send("GET", f"{SESSION.format(members[2])}/lineage").json
    assert told["backward"] == [{"id": members[1], "deleted": True}, shown[0]]
    assert told["summaries"] == [second]
    assert gateway.send("GET", f"{SESSION.format(members[1])}/lineage").code == "session_not_found"


def test_another_agents_path_is_refused(gateway: Gateway, members: list[SessionId]) -> None:
    refused = gateway.send("GET", f"/a1/agents/counting/sessions/{members[0]}/lineage")
    assert (refused.status, refused.code) == (400, "session_agent_mismatch")


def test_a_chain_that_is_not_shown_whole_says_so(
    gateway: Gateway, members: list[SessionId], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MOST_MEMBERS", 1)
    told = gateway.send("GET", f"{SESSION.format(members[2])}/lineage").json
    assert (len(told["backward"]), told["truncated"]) == (1, True)


def test_a_summary_is_told_letter_by_letter(gateway: Gateway, chains: Chains) -> None:
    text = 'line\u2028 "quoted" \U0001f993'

    async def compacted() -> SessionId:
        return await chains.compact((await chains.chain(1))[0], text)

    session = gateway._loop.run_until_complete(compacted())
    (summary,) = gateway.send("GET", f"{SESSION.format(session)}/lineage").json["summaries"]
    assert summary["text"] == text


def test_outside_a_session_the_tool_says_that_nothing_was_left_out(gateway: Gateway) -> None:
    listed = {tool["function"]["name"] for tool in gateway.send("GET", "/v1/tools").json["tools"]}
    assert "lineage_search" in listed
    answer = gateway.send("POST", "/v1/tools/execute", body={"name": "lineage_search", "arguments": {"query": "zebra"}})
    assert answer.status == 200
    assert answer.json["result"]["error"]["code"] == "no_session"
    assert "no session" in json.dumps(answer.json["result"])
