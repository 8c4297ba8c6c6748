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
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.rag.conftest import RagHarness, documents
from tests.simulated.memory import aws_for_faults
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


BERLIN = IndexId("berlin")
OLD = {"a": "old", "b": "unchanged"}
ADDITIONS = [{"id": "a", "text": "new"}, {"id": "c", "text": "added"}]
WRITES: Mapping[str, tuple[dict[str, Any], dict[str, str] | None]] = {
    "rag_index_create": ({"documents": ADDITIONS}, {"a": "new", "c": "added"}),
    "rag_doc_append": ({"documents": ADDITIONS}, OLD | {"a": "new", "c": "added"}),
    "rag_doc_patch": ({"doc_id": "a", "text": "patched"}, OLD | {"a": "patched"}),
    "rag_doc_delete": ({"doc_id": "a"}, {"b": "unchanged"}),
    "rag_index_delete": ({}, None),
}
"""For each tool: its arguments, and the documents after the write to an index that contained ``OLD`` (None: no index)."""


@dataclass(slots=True)
class ToolClient:
    """Call tools for one tenant, each time on a new worker."""

    rag: RagHarness

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        box = toolbox_of(rag=self.rag.worker())
        return (await box.execute_direct(self.rag.scope(), name, {"index_id": BERLIN, **arguments})).body.result

    async def confirm(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make the first call, which previews the write. Return the arguments of the second call, with the confirm token."""
        return {**arguments, "confirm_token": (await self.call(name, arguments))["confirm_token"]}

    async def call_with_fault(self, plan: FaultPlan, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool while ``plan`` injects its fault. Return the answer, or None if the call failed."""
        answer = None
        with inject(plan), suppress(Crash, StorageUnavailable):
            answer = await self.call(name, arguments)
        assert len(plan.calls) > plan.at, "the call made too few AWS calls, so no fault was injected"
        return answer

    async def contents(self) -> tuple[int, dict[str, str]] | None:
        """Return the version and the documents, or None if there is no index."""
        described = await self.call("rag_index_describe", {})
        return None if "error" in described else (described["version"], await self.rag.texts(BERLIN))


@dataclass(frozen=True, slots=True)
class Tenants:
    """Create tenants, each with an index that contains ``OLD``."""

    aws: Aws
    prefix: TenantId

    async def client(self, name: str) -> ToolClient:
        rag = RagHarness(self.aws.for_tenant(TenantId(f"{self.prefix}-{name}")))
        await rag.worker().writer.append(rag.scope(), BERLIN, documents(*OLD.items()))
        return ToolClient(rag)


@pytest.fixture
def tenants(aws: Aws, tenant: TenantId) -> Tenants:
    return Tenants(aws, tenant)


@pytest.fixture
async def client(tenants: Tenants) -> ToolClient:
    return await tenants.client("one")


@pytest.mark.parametrize("name", WRITES)
async def test_one_of_eight_concurrent_uses_of_a_token_succeeds(client: ToolClient, name: str) -> None:
    arguments, contents = WRITES[name]
    confirmed_arguments = await client.confirm(name, arguments)
    results = await asyncio.gather(*(client.call(name, confirmed_arguments) for _ in range(8)), return_exceptions=True)
    refusals = [result for result in results if isinstance(result, ConfirmTokenInvalid)]
    answers = [result for result in results if not isinstance(result, BaseException)]
    assert (len(answers), len(refusals)) == (1, 7), results
    assert "error" not in answers[0]
    assert await client.contents() == (None if contents is None else (2, contents))


async def test_eight_tokens_that_are_used_concurrently_are_all_accepted(client: ToolClient) -> None:
    async def add(number: int) -> Any:
        arguments = {"documents": [{"id": f"d{number}", "text": str(number)}]}
        return await client.call("rag_doc_append", await client.confirm("rag_doc_append", arguments))

    answers = await asyncio.gather(*map(add, range(8)))
    assert sorted(answer["version"] for answer in answers) == [*range(2, 10)]
    assert await client.contents() == (9, OLD | {f"d{number}": str(number) for number in range(8)})


async def test_tokens_of_concurrent_first_calls_are_signed_with_the_same_key(client: ToolClient) -> None:
    tokens = await asyncio.gather(*(client.confirm("rag_doc_delete", {"doc_id": name}) for name in "abababab"))
    delete_a, delete_b, delete_a_twice = tokens[:3]
    assert await client.call("rag_doc_delete", delete_a) == {"deleted": True}
    assert await client.call("rag_doc_delete", delete_b) == {"deleted": True}
    # The document that this token's preview showed no longer exists.
    with pytest.raises(ConfirmTokenInvalid):
        await client.call("rag_doc_delete", delete_a_twice)


async def aws_operations(client: ToolClient, name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Call a tool and return the AWS operations that it made, in order."""
    with inject(FaultPlan()) as plan:
        await client.call(name, arguments)
    return [call.operation for call in plan.calls]


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_first_call_changes_nothing_under_any_fault(tenants: Tenants, fault: Fault) -> None:
    name, (arguments, contents) = "rag_doc_append", WRITES["rag_doc_append"]
    operations = await aws_operations(await tenants.client("no-fault"), name, arguments)
    assert operations.count("PutItem") == 2, "the tenant's key and the audit record"

    async def fail_at(at: int) -> None:
        client = await tenants.client(f"{fault}-{at}")
        await client.call_with_fault(FaultPlan(fault, at=at), name, arguments)
        assert await client.contents() == (1, OLD)
        await client.call(name, await client.confirm(name, arguments))
        assert await client.contents() == (2, contents)

    await asyncio.gather(*map(fail_at, range(len(operations))))


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("name", WRITES)
async def test_under_any_fault_the_write_is_complete_or_the_token_can_still_be_used(
    tenants: Tenants, name: str, fault: Fault
) -> None:
    arguments, contents = WRITES[name]
    after = None if contents is None else (2, contents)
    no_fault = await tenants.client("no-fault")
    operations = await aws_operations(no_fault, name, await no_fault.confirm(name, arguments))
    assert operations.count("TransactWriteItems") == 1

    async def fail_at(at: int) -> None:
        description = f"{fault} at {at} ({operations[at]})"
        client = await tenants.client(f"{fault}-{at}")
        confirmed_arguments = await client.confirm(name, arguments)
        answer = await client.call_with_fault(FaultPlan(fault, at=at), name, confirmed_arguments)
        state = await client.contents()
        assert state in ((1, OLD), after), description
        if answer is not None:
            assert "error" not in answer, description
            assert state == after, description
        if state == after:
            with pytest.raises(ConfirmTokenInvalid):
                await client.call(name, confirmed_arguments)
        else:
            assert "error" not in await client.call(name, confirmed_arguments), description
        assert await client.contents() == after, description

    await asyncio.gather(*map(fail_at, range(len(operations))))
