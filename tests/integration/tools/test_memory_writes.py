"""A note is written once: whoever else writes at the same time, and whichever AWS call goes wrong."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from spass.aws.clients import Aws, TenantStore
from spass.aws.table import TenantTable
from spass.aws.writes import Write
from spass.core.errors import ConfirmTokenInvalid, StorageUnavailable
from spass.core.ids import TenantId
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.toolbox import Toolbox
from tests.integration.rag.conftest import RagHarness
from tests.simulated.memory import aws_for_faults

pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


NOTE = {"note": "Ada likes tea."}


@dataclass(frozen=True, slots=True)
class Writer:
    """An administrator of one tenant, every call of whose is served by a process of its own."""

    store: TenantStore

    async def call(self, name: str, **arguments: Any) -> Any:
        world, cascade = RagHarness(self.store), Cascade(GatewayConfig())
        return (await Toolbox(world.worker(), cascade).execute_direct(world.scope(admin=True), name, arguments)).result

    async def asked(self, **arguments: str) -> Mapping[str, Any]:
        return {**arguments, "confirm_token": (await self.call("memory_write", **arguments))["confirm_token"]}

    async def lines(self) -> list[str]:
        memory = (await self.call("memory_read"))["memory"]
        return memory.split("\n") if memory else []


@pytest.fixture
def writer(aws: Aws, tenant: TenantId) -> Writer:
    return Writer(aws.for_tenant(tenant))


async def test_of_eight_uses_of_a_token_at_once_one_wins(writer: Writer) -> None:
    confirmed = await writer.asked(**NOTE)
    results = await asyncio.gather(*(writer.call("memory_write", **confirmed) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, ConfirmTokenInvalid) for result in results) == 7, results
    assert await writer.lines() == [NOTE["note"]]


async def test_of_writers_at_once_none_loses_a_note_nor_a_setting(writer: Writer) -> None:
    async def note(number: int) -> None:
        await writer.call("memory_write", **await writer.asked(note=f"note {number}"))

    async def sets(number: int) -> None:
        await Cascade(GatewayConfig()).change(writer.store, {"rag_top_k": number})

    await asyncio.gather(*map(note, range(8)), *map(sets, range(1, 5)))
    assert sorted(await writer.lines()) == [f"note {number}" for number in range(8)]
    settings = await Cascade(GatewayConfig()).read(writer.store)
    assert settings.sources["rag_top_k"] == "db"


async def test_a_note_whose_reply_was_lost_is_written_once_however_many_others_came_after(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact = TenantTable.transact
    confirmed = await writer.asked(**NOTE)
    others = [f"note {number}" for number in range(40)]

    async def lost(table: TenantTable, writes: Sequence[Write], *, token: str) -> None:
        monkeypatch.setattr(TenantTable, "transact", transact)
        await transact(table, writes, token=token)
        for other in others:
            await writer.call("memory_write", **await writer.asked(note=other))
        raise StorageUnavailable("lost")

    monkeypatch.setattr("spass.testing.table.TRANSACTION_TOKEN_SECONDS", 0)  # as if ten minutes had passed
    monkeypatch.setattr(TenantTable, "transact", lost)
    await writer.call("memory_write", **confirmed)
    assert await writer.lines() == [NOTE["note"], *others]


@pytest.mark.parametrize("before", [[], ["Bob likes coffee."]], ids=["the first note", "another note"])
@pytest.mark.parametrize("fault", list(Fault))
async def test_whatever_goes_wrong_all_of_it_happened_or_nothing_and_the_token_is_good(
    aws: Aws, tenant: TenantId, fault: Fault, before: list[str]
) -> None:
    after = [*before, NOTE["note"]]

    async def begun(name: str) -> tuple[Writer, Mapping[str, Any]]:
        writer = Writer(aws.for_tenant(TenantId(f"{tenant}-{name}")))
        for line in before:
            await writer.call("memory_write", **await writer.asked(note=line))
        return writer, await writer.asked(**NOTE)

    counted, confirmed = await begun("counted")
    with inject(FaultPlan()) as plan:
        await counted.call("memory_write", **confirmed)
    points = [call.operation for call in plan.calls]
    assert points.count("TransactWriteItems") == 1

    async def goes_wrong(at: int) -> None:
        where = f"{fault} at {at} ({points[at]})"
        writer, confirmed = await begun(f"at-{at}")
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

    await asyncio.gather(*map(goes_wrong, range(len(points))))
