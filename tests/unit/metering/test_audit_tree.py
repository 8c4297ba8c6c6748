"""Test the tree of the calls of one request."""

from typing import Any

import pytest

from spass.core.errors import RequestNotFound
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId
from spass.core.time import Timestamp
from spass.metering import audit_tree
from spass.metering.audit import CallKind, attributes, record_call
from spass.metering.audit_tree import tree
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Identity
from tests.unit.metering.ledger import LedgerHarness, call, days_ago

pytestmark = pytest.mark.anyio

OUTER = RequestId("req_outer")


def caller(user: str | None, *, token: str = "app", admin: bool = False) -> Caller:
    identity = Identity(TenantId("demo"), token, admin, ())
    return Caller(identity, UserId(user) if user else None, RequestId("req_now"), None, 0, "/v1/audit/{request_id}")


ANNA = caller("anna")  # the user of the calls in the ledger


def later(base: Timestamp, number: int) -> Timestamp:
    return Timestamp(f"{base[:-5]}.{number:03d}Z")


async def nested(store: TenantStore) -> None:
    """Record a chat, its tool call with an embedding inside, and another chat."""
    base = call().at
    tool = call(request_id=RequestId("req_2"), kind=CallKind.TOOL, tool="rag_query", model=None, at=later(base, 2))
    embedding = call(
        request_id=RequestId("req_3"), parent_request_id=tool.request_id, kind=CallKind.EMBEDDING, model="mini", at=later(base, 3)
    )
    first, second = (call(request_id=RequestId(f"req_{number}"), at=later(base, number)) for number in (1, 4))
    for record in (embedding, second, tool, first):  # in the order in which they end
        await record_call(store, record)


def shape(calls: Any) -> Any:
    return [(one["request_id"], shape(one["calls"])) for one in calls]


async def test_sub_calls_are_listed_below_their_call_in_time_order(store: TenantStore) -> None:
    await nested(store)
    found: Any = (await tree(store, ANNA, OUTER)).to_dict()
    assert found["request_id"] == "req_outer"
    assert shape(found["calls"]) == [("req_1", []), ("req_2", [("req_3", [])]), ("req_4", [])]
    assert found["truncated"] is False


async def test_a_call_has_the_fields_of_its_record_and_no_attributes_of_the_table(store: TenantStore) -> None:
    record = call()
    await record_call(store, record)
    found: Any = (await tree(store, ANNA, OUTER)).to_dict()
    said = {name: value for name, value in found["calls"][0].items() if value is not None}
    assert said == {"tenant": store.tenant, **attributes(record), "calls": []}


async def test_every_call_has_every_field_and_empty_fields_are_null(store: TenantStore) -> None:
    full = call(
        request_id=RequestId("req_1"),
        origin_request_id=RequestId("req_elsewhere"),
        user=UserId("ada"),
        agent=AgentName("counting"),
        session=SessionId("ses_1"),
        tool="calculator",
        model="small",
        backend="upstream",
        attempts=2,
        usage_estimated=True,
        finish_reason="stop",
    )
    bare = call(request_id=RequestId("req_2"), kind=CallKind.TOOL, user=None, agent=None, session=None, model=None, backend=None)
    for record in (full, bare):
        await record_call(store, record)
    found: Any = (await tree(store, caller("ada"), OUTER)).to_dict()
    first, second = found["calls"]
    assert [*first] == [*second]
    assert first == {"tenant": store.tenant, **attributes(full), "calls": []}
    empty = {name for name, value in second.items() if value is None}
    assert empty >= {"user", "agent", "session", "model", "backend", "attempts", "cost_usd"}


@pytest.mark.parametrize("of", ["anna", None])
async def test_only_its_user_and_admins_see_a_request(store: TenantStore, of: str | None) -> None:
    await record_call(store, call(request_id=RequestId("req_1"), user=UserId(of) if of else None))
    for sees in (caller(of), caller(of, token="another"), caller("grace", admin=True), caller(None, admin=True)):
        assert shape((await tree(store, sees, OUTER)).to_dict()["calls"]) == [("req_1", [])]
    for stranger in (caller("bob"), caller(None if of else "anna")):
        with pytest.raises(RequestNotFound) as absent:
            await tree(store, stranger, RequestId("req_absent"))
        with pytest.raises(RequestNotFound) as hidden:
            await tree(store, stranger, OUTER)
        assert str(hidden.value) == str(absent.value)


async def test_a_call_without_a_recorded_parent_is_listed_below_the_request(store: TenantStore) -> None:
    await record_call(store, call(request_id=RequestId("req_1"), parent_request_id=RequestId("req_gone")))
    assert shape((await tree(store, ANNA, OUTER)).to_dict()["calls"]) == [("req_1", [])]


async def test_a_request_without_calls_is_not_found(store: TenantStore) -> None:
    with pytest.raises(RequestNotFound):
        await tree(store, ANNA, OUTER)


async def test_a_request_of_another_tenant_is_not_found(ledger: LedgerHarness) -> None:
    await record_call(ledger.store, call())
    with pytest.raises(RequestNotFound):
        await tree(ledger.aws.for_tenant(TenantId("other")), ANNA, OUTER)


async def test_expired_records_are_not_listed(store: TenantStore) -> None:
    await record_call(store, call(at=days_ago(91)))
    with pytest.raises(RequestNotFound):
        await tree(store, ANNA, OUTER)


async def test_a_truncated_answer_lists_the_first_calls(store: TenantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await nested(store)
    monkeypatch.setattr(audit_tree, "MAX_RECORDS", 3)
    found: Any = (await tree(store, ANNA, OUTER)).to_dict()
    assert shape(found["calls"]) == [("req_1", []), ("req_2", [("req_3", [])])]
    assert found["truncated"] is True
