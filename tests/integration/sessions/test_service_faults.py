"""Inject each fault into each AWS call that creates or deletes a session. The client retries."""

import contextlib
from typing import TYPE_CHECKING

import pytest

from spass.aws.clients import Aws
from spass.calls.scope import Scope
from spass.core.errors import SessionNotFound, StorageUnavailable
from spass.core.ids import AgentName, SessionId, UserId
from spass.sessions import record
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession, SessionView
from spass.store import keys
from spass.store.idempotency import StoredResponse, acquire
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


AGENT, USER = AgentName("librarian"), UserId("ana")


@pytest.fixture
def scope(harness: "SessionHarness") -> Scope:
    return harness.scope


@pytest.fixture
def sessions(harness: "SessionHarness") -> Sessions:
    return new_process(harness)


def new_process(harness: "SessionHarness") -> Sessions:
    """Return the sessions service of a new process, with empty caches."""
    return Sessions(Cascade(GatewayConfig()), ScriptedSummarizer, clock=lambda: harness.now)


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_session_is_created_once_if_any_call_fails(
    harness: "SessionHarness", scope: Scope, sessions: Sessions, fault: Fault
) -> None:
    async def create(key: str) -> object:
        claim = await acquire(harness.store, harness.idempotent(key, "body"))
        if isinstance(claim, StoredResponse):
            return claim.body["id"]
        return (await new_process(harness).create(scope, AGENT, CreateSession(), claim)).id

    with inject(FaultPlan()) as plan:
        created = [await create(f"{fault}-count")]
    points = len(plan.calls)
    assert points == 3, "the claim, the tenant's settings, and the session"
    for point in range(points):
        key = f"{fault}-{point}"
        request = harness.idempotent(key, "body")
        with inject(FaultPlan(fault, at=point)):
            try:
                created.append(await create(key))
                continue
            except (Crash, StorageUnavailable):
                pass
        # The claim expires, unless the edge has released it.
        item = await harness.store.table.get(keys.idempotency(harness.store.tenant, request.digest))
        if item is not None and item["state"] == "running":
            await harness.expire_claim(request)
        created.append(await create(key))
    listed = (await sessions.page(scope, AGENT, None, 100)).sessions
    assert [session.id for session in listed] == sorted(map(str, created), reverse=True)
    for session in listed:
        assert SessionView.of(await sessions.get(scope, AGENT, session.id)) == session


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_session_is_hidden_before_its_data_is_deleted(
    harness: "SessionHarness", scope: Scope, sessions: Sessions, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create_session() -> SessionId:
        created = (await sessions.create(scope, AGENT, CreateSession(title="Berlin"))).id
        await harness.turn(created, "small").answer()
        monkeypatch.setattr(record, "BODY", Overflow("body", 10))
        await harness.turn(created, "large").answer()
        monkeypatch.setattr(record, "BODY", Overflow("body", 350_000))
        return created

    with inject(FaultPlan()) as plan:
        await sessions.delete(scope, AGENT, await create_session())
    points = len(plan.calls)
    assert points >= 6
    for point in sampled(range(points), 3, fault):
        target = await create_session()
        with inject(FaultPlan(fault, at=point)), contextlib.suppress(Crash, StorageUnavailable):
            await sessions.delete(scope, AGENT, target)
        listed = [view.id for view in (await sessions.page(scope, AGENT, None, 100)).sessions]
        try:
            view = await sessions.get(scope, AGENT, target)
        except SessionNotFound:
            assert target not in listed
        else:
            assert listed == [target]
            assert len(await harness.history(view.id)) == view.message_count == 8, "complete or absent"
        with contextlib.suppress(SessionNotFound):
            await sessions.delete(scope, AGENT, target)
        assert await harness.store.table.query(keys.session_partition(harness.store.tenant, target)) == []
        assert await harness.store.objects.list_keys(f"sessions/{target}/") == []
        assert (await sessions.page(scope, AGENT, None, 100)).sessions == []


async def test_an_uncommitted_body_is_deleted_with_its_session_only(
    harness: "SessionHarness", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    target, other = await harness.session(), await harness.session()
    with inject(FaultPlan()) as plan:
        await harness.turn(other, "kept").answer()
    commit = [call.operation for call in plan.calls].index("TransactWriteItems")
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=commit)), pytest.raises(Crash):
        await harness.turn(target, "a secret").answer()
    assert len(await harness.store.objects.list_keys(f"sessions/{target}/")) == 1
    harness.now += LEASE_SECONDS
    await harness.delete(target)
    assert await harness.store.objects.list_keys(f"sessions/{target}/") == []
    assert len(await harness.history(other)) == 4
