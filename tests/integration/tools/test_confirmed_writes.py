"""A confirmed write takes place once, even if its token is used concurrently or an AWS call fails."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from spass.aws.clients import Aws
from spass.core.errors import ConfirmTokenInvalid, StorageUnavailable
from spass.core.ids import IndexId, TenantId
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.toolbox import Toolbox
from tests.integration.rag.conftest import RagHarness, documents
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


BERLIN = IndexId("berlin")
OLD = {"a": "alt", "b": "bleibt"}
ADDITIONS = [{"id": "a", "text": "neu"}, {"id": "c", "text": "dazu"}]
WRITES: Mapping[str, tuple[dict[str, Any], dict[str, str] | None]] = {
    "rag_index_create": ({"documents": ADDITIONS}, {"a": "neu", "c": "dazu"}),
    "rag_doc_append": ({"documents": ADDITIONS}, OLD | {"a": "neu", "c": "dazu"}),
    "rag_doc_patch": ({"doc_id": "a", "text": "anders"}, OLD | {"a": "anders"}),
    "rag_doc_delete": ({"doc_id": "a"}, {"b": "bleibt"}),
    "rag_index_delete": ({}, None),
}
"""Tool -> its arguments for an index that contains ``OLD``, and the documents after the write."""


@dataclass(slots=True)
class Curator:
    """A tenant. Every call is served by a new process."""

    world: RagHarness

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        box = Toolbox(self.world.worker(), Cascade(GatewayConfig()))
        return (await box.execute_direct(self.world.scope(), name, {"index_id": BERLIN, **arguments})).body.result

    async def confirm(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**arguments, "confirm_token": (await self.call(name, arguments))["confirm_token"]}

    async def call_with_fault(self, plan: FaultPlan, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the answer to a call under ``plan``, or None if it failed."""
        answer = None
        with inject(plan), suppress(Crash, StorageUnavailable):
            answer = await self.call(name, arguments)
        assert len(plan.calls) > plan.at, "the fault occurred"
        return answer

    async def contents(self) -> tuple[int, dict[str, str]] | None:
        """Return the version and the documents, or None if there is no index."""
        described = await self.call("rag_index_describe", {})
        return None if "error" in described else (described["version"], await self.world.texts(BERLIN))


@dataclass(frozen=True, slots=True)
class Tenants:
    """Creates tenants, each with an index."""

    aws: Aws
    prefix: TenantId

    async def curator(self, name: str) -> Curator:
        world = RagHarness(self.aws.for_tenant(TenantId(f"{self.prefix}-{name}")))
        await world.worker().writer.append(world.scope(), BERLIN, documents(*OLD.items()))
        return Curator(world)


@pytest.fixture
def tenants(aws: Aws, tenant: TenantId) -> Tenants:
    return Tenants(aws, tenant)


@pytest.fixture
async def curator(tenants: Tenants) -> Curator:
    return await tenants.curator("one")


@pytest.mark.parametrize("name", WRITES)
async def test_one_of_eight_concurrent_uses_of_a_token_succeeds(curator: Curator, name: str) -> None:
    arguments, contents = WRITES[name]
    confirmed = await curator.confirm(name, arguments)
    results = await asyncio.gather(*(curator.call(name, confirmed) for _ in range(8)), return_exceptions=True)
    lost = [result for result in results if isinstance(result, ConfirmTokenInvalid)]
    won = [result for result in results if not isinstance(result, BaseException)]
    assert (len(won), len(lost)) == (1, 7), results
    assert "error" not in won[0]
    assert await curator.contents() == (None if contents is None else (2, contents))


async def test_eight_concurrent_tokens_are_all_accepted(curator: Curator) -> None:
    async def add(number: int) -> Any:
        arguments = {"documents": [{"id": f"d{number}", "text": str(number)}]}
        return await curator.call("rag_doc_append", await curator.confirm("rag_doc_append", arguments))

    answers = await asyncio.gather(*map(add, range(8)))
    assert sorted(answer["version"] for answer in answers) == [*range(2, 10)]
    assert await curator.contents() == (9, OLD | {f"d{number}": str(number) for number in range(8)})


async def test_eight_concurrent_first_calls_use_the_same_key(curator: Curator) -> None:
    tokens = await asyncio.gather(*(curator.confirm("rag_doc_delete", {"doc_id": name}) for name in "abababab"))
    one, another = tokens[0], tokens[1]
    assert await curator.call("rag_doc_delete", one) == {"deleted": True}
    assert await curator.call("rag_doc_delete", another) == {"deleted": True}
    with pytest.raises(ConfirmTokenInvalid):
        await curator.call("rag_doc_delete", tokens[2])


async def calls_of(curator: Curator, name: str, arguments: Mapping[str, Any]) -> list[str]:
    with inject(FaultPlan()) as plan:
        await curator.call(name, arguments)
    return [call.operation for call in plan.calls]


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_first_call_changes_nothing_under_any_fault(tenants: Tenants, fault: Fault) -> None:
    name, (arguments, contents) = "rag_doc_append", WRITES["rag_doc_append"]
    points = await calls_of(await tenants.curator("counted"), name, arguments)
    assert points.count("PutItem") == 2, "the tenant's key and the audit record"

    async def fail_at(at: int) -> None:
        curator = await tenants.curator(f"{fault}-{at}")
        await curator.call_with_fault(FaultPlan(fault, at=at), name, arguments)
        assert await curator.contents() == (1, OLD)
        await curator.call(name, await curator.confirm(name, arguments))
        assert await curator.contents() == (2, contents)

    await asyncio.gather(*map(fail_at, range(len(points))))


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("name", WRITES)
async def test_under_any_fault_the_write_is_complete_or_the_token_unused(tenants: Tenants, name: str, fault: Fault) -> None:
    arguments, contents = WRITES[name]
    after = None if contents is None else (2, contents)
    counted = await tenants.curator("counted")
    points = await calls_of(counted, name, await counted.confirm(name, arguments))
    assert points.count("TransactWriteItems") == 1

    async def fail_at(at: int) -> None:
        where = f"{fault} at {at} ({points[at]})"
        curator = await tenants.curator(f"{fault}-{at}")
        confirmed = await curator.confirm(name, arguments)
        answer = await curator.call_with_fault(FaultPlan(fault, at=at), name, confirmed)
        state = await curator.contents()
        assert state in ((1, OLD), after), where
        if answer is not None:
            assert "error" not in answer, where
            assert state == after, where
        if state == after:
            with pytest.raises(ConfirmTokenInvalid):
                await curator.call(name, confirmed)
        else:
            assert "error" not in await curator.call(name, confirmed), where
        assert await curator.contents() == after, where

    await asyncio.gather(*map(fail_at, range(len(points))))
