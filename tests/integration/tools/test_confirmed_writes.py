"""A confirmed write takes place once: whoever else uses its token at the same time, and whichever AWS call goes wrong."""

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
BROUGHT = [{"id": "a", "text": "neu"}, {"id": "c", "text": "dazu"}]
WRITES: Mapping[str, tuple[dict[str, Any], dict[str, str] | None]] = {
    "rag_index_create": ({"documents": BROUGHT}, {"a": "neu", "c": "dazu"}),
    "rag_doc_append": ({"documents": BROUGHT}, OLD | {"a": "neu", "c": "dazu"}),
    "rag_doc_patch": ({"doc_id": "a", "text": "anders"}, OLD | {"a": "anders"}),
    "rag_doc_delete": ({"doc_id": "a"}, {"b": "bleibt"}),
    "rag_index_delete": ({}, None),
}
"""What each tool is asked to do with an index that holds ``OLD``, and what the index holds then."""


@dataclass(slots=True)
class Curator:
    """One tenant, every call of whose is served by a process of its own."""

    world: RagHarness

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        box = Toolbox(self.world.worker(), Cascade(GatewayConfig()))
        return (await box.execute_direct(self.world.scope(), name, {"index_id": BERLIN, **arguments})).result

    async def asked(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**arguments, "confirm_token": (await self.call(name, arguments))["confirm_token"]}

    async def meets(self, plan: FaultPlan, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a call one of whose AWS calls goes wrong; None if there is none."""
        answer = None
        with inject(plan), suppress(Crash, StorageUnavailable):
            answer = await self.call(name, arguments)
        assert len(plan.calls) > plan.at, "the fault was met"
        return answer

    async def holds(self) -> tuple[int, dict[str, str]] | None:
        """The version and the documents; None where there is no index."""
        described = await self.call("rag_index_describe", {})
        return None if "error" in described else (described["version"], await self.world.contents(BERLIN))


@dataclass(frozen=True, slots=True)
class Tenants:
    """As many tenants as a test wants, each with an index."""

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
async def test_of_eight_uses_at_once_one_wins(curator: Curator, name: str) -> None:
    arguments, contents = WRITES[name]
    confirmed = await curator.asked(name, arguments)
    results = await asyncio.gather(*(curator.call(name, confirmed) for _ in range(8)), return_exceptions=True)
    lost = [result for result in results if isinstance(result, ConfirmTokenInvalid)]
    won = [result for result in results if not isinstance(result, BaseException)]
    assert (len(won), len(lost)) == (1, 7), results
    assert "error" not in won[0]
    assert await curator.holds() == (None if contents is None else (2, contents))


async def test_eight_tokens_at_once_are_all_good(curator: Curator) -> None:
    """Nothing is confirmed twice, and nobody who has a token of his own is refused, however many swap at once."""

    async def add(number: int) -> Any:
        arguments = {"documents": [{"id": f"d{number}", "text": str(number)}]}
        return await curator.call("rag_doc_append", await curator.asked("rag_doc_append", arguments))

    answers = await asyncio.gather(*map(add, range(8)))
    assert sorted(answer["version"] for answer in answers) == [*range(2, 10)]
    assert await curator.holds() == (9, OLD | {f"d{number}": str(number) for number in range(8)})


async def test_eight_first_calls_at_once_agree_on_a_key(curator: Curator) -> None:
    tokens = await asyncio.gather(*(curator.asked("rag_doc_delete", {"doc_id": name}) for name in "abababab"))
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
async def test_a_first_call_changes_nothing_whatever_goes_wrong(tenants: Tenants, fault: Fault) -> None:
    name, (arguments, contents) = "rag_doc_append", WRITES["rag_doc_append"]
    points = await calls_of(await tenants.curator("counted"), name, arguments)
    assert points.count("PutItem") == 2, "the tenant's key and the audit record"

    async def goes_wrong(at: int) -> None:
        curator = await tenants.curator(f"{fault}-{at}")
        await curator.meets(FaultPlan(fault, at=at), name, arguments)
        assert await curator.holds() == (1, OLD)
        await curator.call(name, await curator.asked(name, arguments))
        assert await curator.holds() == (2, contents)

    await asyncio.gather(*map(goes_wrong, range(len(points))))


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("name", WRITES)
async def test_whatever_goes_wrong_all_of_it_happened_or_nothing_and_the_token_is_good(
    tenants: Tenants, name: str, fault: Fault
) -> None:
    arguments, contents = WRITES[name]
    done = None if contents is None else (2, contents)
    counted = await tenants.curator("counted")
    points = await calls_of(counted, name, await counted.asked(name, arguments))
    assert points.count("TransactWriteItems") == 1

    async def goes_wrong(at: int) -> None:
        where = f"{fault} at {at} ({points[at]})"
        curator = await tenants.curator(f"{fault}-{at}")
        confirmed = await curator.asked(name, arguments)
        answer = await curator.meets(FaultPlan(fault, at=at), name, confirmed)
        state = await curator.holds()
        assert state in ((1, OLD), done), where
        if answer is not None:
            assert "error" not in answer, where
            assert state == done, where
        if state == done:
            with pytest.raises(ConfirmTokenInvalid):
                await curator.call(name, confirmed)
        else:
            assert "error" not in await curator.call(name, confirmed), where
        assert await curator.holds() == done, where

    await asyncio.gather(*map(goes_wrong, range(len(points))))
