"""Answers for data that a restore could not bring back and has marked. Without a mark, the answers do not change."""

from pathlib import Path

import pytest

from spass.core.ids import TenantId
from spass.store.keys import Key
from spass.store.restored import LOST
from spass.store.writes import Update, Value
from spass.testing.aws import MemoryAws
from tests.functions.gateway import Gateway, Reply


def lose_objects(gateway: Gateway, folder: str) -> None:
    store = gateway.aws.for_tenant(TenantId("demo"))
    keys = gateway.run(store.objects.list_keys(folder))
    assert keys
    gateway.run(store.objects.delete(keys))


def mark(gateway: Gateway, sort_key: str, part: str = "", **more: Value) -> None:
    """Mark the item with this sort key whose partition key contains ``part``, as a restore does."""
    assert isinstance(gateway.aws, MemoryAws)
    items = [item for item in gateway.aws.table.items() if item["sk"] == sort_key and part in str(item["pk"])]
    (item,) = items
    value: Value = {"to": "2026-11-24T10:00:00Z", "count": 1, "parts": ["a part"], **more}
    key = Key(str(item["pk"]), str(item["sk"]))
    gateway.run(gateway.aws.for_tenant(TenantId("demo")).table.write(Update(key, set={LOST: value})))


def generation(gateway: Gateway) -> str:
    assert isinstance(gateway.aws, MemoryAws)
    return next(str(item["generation"]) for item in gateway.aws.table.items() if item["sk"] == "IDX#notes")


def assert_lost(reply: Reply, what: str) -> None:
    assert (reply.status, reply.code) == (500, "internal_error")
    assert reply.json["error"]["message"] == f"A part of {what} is lost: the operator's restore could not bring it back."


def test_a_marked_index_says_that_a_part_of_it_is_lost(gateway: Gateway, tmp_path: Path) -> None:
    gateway.put_documents(a="text")
    lose_objects(gateway, "rag/notes/")
    cold = gateway.reconfigure(tmp_path / "cold", "retries: 0", "retries: 0")

    def read() -> Reply:
        return cold.send("GET", "/a1/rag/indices/notes/documents")

    assert read().code == "storage_unavailable"
    mark(gateway, "IDX#notes", generation="an earlier one")
    assert read().code == "storage_unavailable"
    mark(gateway, "IDX#notes", generation=generation(gateway))
    assert_lost(read(), "this index")


def test_a_replaced_index_is_whole_although_its_mark_stays(gateway: Gateway) -> None:
    gateway.put_documents(a="text")
    mark(gateway, "IDX#notes", generation=generation(gateway))
    lose_objects(gateway, "rag/notes/")
    gateway.put_documents(b="other")
    assert [one["id"] for one in gateway.send("GET", "/a1/rag/indices/notes/documents").json["documents"]] == ["b"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_marked_session_says_that_a_part_of_it_is_lost(gateway: Gateway, method: str) -> None:
    gateway.model.script = "word " * 80_000
    path = "/a1/agents/plain/sessions"
    session = str(gateway.send("POST", path).json["id"])
    messages = f"{path}/{session}/messages"
    assert gateway.send("POST", messages, body={"message": "Write much."}).status == 200
    lose_objects(gateway, f"sessions/{session}/")
    mark(gateway, "HEAD", f"#SES#{session}")
    assert_lost(gateway.send(method, messages, body={"message": "Go on."} if method == "POST" else None), "this session")


def test_a_marked_managed_agent_says_that_a_part_of_it_is_lost(gateway: Gateway) -> None:
    agent = str(gateway.send("POST", "/v1/managed-agents", body={"name": "a", "agent": "simple"}).json["id"])
    messages = f"/v1/managed-agents/{agent}/messages"
    assert gateway.send("POST", messages, body={"content": "word " * 4000}).status == 202
    lose_objects(gateway, f"managed/{agent}/")
    assert gateway.send("GET", messages).code == "agent_not_found"
    mark(gateway, "AGENT", agent)
    assert_lost(gateway.send("GET", messages), "this agent")
