"""A note is written once, even among concurrent writers or if an AWS call fails."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from spass.aws.clients import Aws
from spass.core.errors import ConfirmTokenInvalid, StorageUnavailable
from spass.core.ids import TenantId
from spass.store.table import TenantTable
from spass.store.tenant_store import TenantStore
from spass.store.writes import Write
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.rag.conftest import RagHarness
from tests.simulated.memory import aws_for_faults
from tests.unit.tools.fakes import toolbox_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


NOTE = {"note": "Ada likes tea."}


@dataclass(frozen=True, slots=True)
class Writer:
    """Call tools for an administrator of one tenant, each time on a new worker."""

    store: TenantStore

    async def call(self, name: str, **arguments: Any) -> Any:
        rag, cascade = RagHarness(self.store), Cascade(GatewayConfig())
        return (
            await toolbox_of(rag=rag.worker(), cascade=cascade).execute_direct(rag.scope(admin=True), name, arguments)
        ).body.result

    async def confirm(self, **arguments: str) -> Mapping[str, Any]:
        return {**arguments, "confirm_token": (await self.call("memory_write", **arguments))["confirm_token"]}

    async def lines(self) -> list[str]:
        memory = (await self.call("memory_read"))["memory"]
        return memory.split("\n") if memory else []


@pytest.fixture
def writer(aws: Aws, tenant: TenantId) -> Writer:
    return Writer(aws.for_tenant(tenant))


async def test_one_of_eight_concurrent_uses_of_a_token_succeeds(writer: Writer) -> None:
    confirmed = await writer.confirm(**NOTE)
    results = await asyncio.gather(*(writer.call("memory_write", **confirmed) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, ConfirmTokenInvalid) for result in results) == 7, results
    assert await writer.lines() == [NOTE["note"]]


async def test_concurrent_writers_lose_neither_notes_nor_settings(writer: Writer) -> None:
    async def note(number: int) -> None:
        await writer.call("memory_write", **await writer.confirm(note=f"note {number}"))

    async def change(number: int) -> None:
        await Cascade(GatewayConfig()).change(writer.store, {"rag_top_k": number})

    await asyncio.gather(*map(note, range(8)), *map(change, range(1, 5)))
    assert sorted(await writer.lines()) == [f"note {number}" for number in range(8)]
    settings = await Cascade(GatewayConfig()).read(writer.store)
    assert settings.sources["rag_top_k"] == "db"


async def test_after_a_lost_reply_and_forty_writers_a_note_is_written_once(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = TenantTable.transact
    confirmed = await writer.confirm(**NOTE)
    others = [f"note {number}" for number in range(40)]

    async def lose_reply(table: TenantTable, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.setattr(TenantTable, "transact", transact)
        await transact(table, writes, token=token)
        for other in others:
            await writer.call("memory_write", **await writer.confirm(note=other))
        raise StorageUnavailable("lost")

    monkeypatch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)  # as if ten minutes had passed
    monkeypatch.setattr(TenantTable, "transact", lose_reply)
    await writer.call("memory_write", **confirmed)
    assert await writer.lines() == [NOTE["note"], *others]


@pytest.mark.parametrize("before", [[], ["Bob likes coffee."]], ids=["the first note", "another note"])
@pytest.mark.parametrize("fault", list(Fault))
async def test_under_any_fault_the_note_is_written_once_or_the_token_can_still_be_used(
    aws: Aws, tenant: TenantId, fault: Fault, before: list[str]
) -> None:
    after = [*before, NOTE["note"]]

    async def prepare(name: str) -> tuple[Writer, Mapping[str, Any]]:
        writer = Writer(aws.for_tenant(TenantId(f"{tenant}-{name}")))
        for line in before:
            await writer.call("memory_write", **await writer.confirm(note=line))
        return writer, await writer.confirm(**NOTE)

    no_fault, confirmed = await prepare("no-fault")
    with inject(FaultPlan()) as plan:
        await no_fault.call("memory_write", **confirmed)
    points = [call.operation for call in plan.calls]
    assert points.count("TransactWriteItems") == 1

    async def fail_at(at: int) -> None:
        where = f"{fault} at {at} ({points[at]})"
        writer, confirmed = await prepare(f"at-{at}")
        plan, answer = FaultPlan(fault, at=at), None
        with inject(plan), suppress(Crash, StorageUnavailable):
            answer = await writer.call("memory_write", **confirmed)
        assert len(plan.calls) > at, where
        state = await writer.lines()
        assert state in (before, after), where
        if answer is not None:
            assert (set(answer), state) == ({"memory_size_bytes"}, after), where
        if state == after:
            with pytest.raises(ConfirmTokenInvalid):
                await writer.call("memory_write", **confirmed)
        else:
            await writer.call("memory_write", **confirmed)
        assert await writer.lines() == after, where

    await asyncio.gather(*map(fail_at, range(len(points))))
