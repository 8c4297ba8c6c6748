"""Test calls, lost replies, redeliveries, resets and reports in any order: the usage always equals the sum of the audit records,
and a reset does not change the cost of the month."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from spass.core.cost import Cost
from spass.core.errors import StorageUnavailable
from spass.core.ids import AgentName, RequestId
from spass.core.messages import TokenUsage
from spass.metering import audit
from spass.metering.audit import AuditRecord, CallKind
from spass.metering.usage import UsageQuery, reset, spending_of_month, usage
from spass.store import keys
from spass.store.writes import Item
from spass.testing.faults import Crash, Fault, inject
from tests.sampling import SOAK
from tests.unit.metering.ledger import TODAY, Faults, LedgerHarness, call, days_ago, usd

AGENTS = [AgentName("reader"), AgentName("writer"), None]
MONTHS = sorted({days_ago(days)[:7] for days in (0, 1, 40)})

FAULTS = st.dictionaries(st.integers(0, 3), st.sampled_from(list(Fault)), max_size=3)
NO_AMOUNTS = (TokenUsage(), Cost())
RECORDS = st.builds(
    lambda kind, status, agent, days, amounts: call(
        kind=kind, status=status, agent=agent, at=days_ago(days), usage=amounts[0], cost=amounts[1]
    ),
    st.sampled_from([CallKind.CHAT, CallKind.CHAT, CallKind.EMBEDDING, CallKind.TOOL]),
    st.sampled_from(["ok", "upstream_error", "cancelled"]),
    st.sampled_from(AGENTS),
    st.sampled_from([0, 1, 40]),
    st.sampled_from([(TokenUsage(7, 2), usd("0.1")), (TokenUsage(3), usd("0.000000000001")), NO_AMOUNTS]),
)


@dataclass(frozen=True)
class Call:
    record: AuditRecord
    faults: dict[int, Fault]


@dataclass(frozen=True)
class Delivery:
    """Deliver the newest or the oldest message of the queue, even if it was delivered before."""

    newest: bool
    faults: dict[int, Fault]


@dataclass(frozen=True)
class Reset:
    agent: AgentName | None
    faults: dict[int, Fault]


STEPS = st.one_of(
    st.builds(Call, RECORDS, FAULTS),
    st.builds(Call, RECORDS, FAULTS),
    st.builds(Delivery, st.booleans(), FAULTS),
    st.builds(Reset, st.sampled_from(AGENTS), st.dictionaries(st.integers(0, 3), st.sampled_from([Fault.REPEATED]), max_size=2)),
)


@dataclass
class LedgerSimulation:
    """The ledger of one tenant, and the usage that its audit records add up to."""

    ledger: LedgerHarness
    seen: set[RequestId] = field(default_factory=set)
    expected: dict[AgentName | None, list[Item]] = field(default_factory=dict)
    cost: dict[str, Decimal] = field(default_factory=dict)
    queued: list[Any] = field(default_factory=list)
    calls: list[AuditRecord] = field(default_factory=list)

    async def step(self, step: Call | Delivery | Reset) -> None:
        store = self.ledger.store
        with inject(Faults(of=step.faults)):
            try:
                match step:
                    case Call(record):
                        self.calls.append(record)
                        await audit.record_call(store, record)
                    case Delivery(newest) if self.queued:
                        await audit.account(store, self.queued[-1 if newest else 0]["record"])
                    case Reset(agent):
                        await reset(store, agent)
                        for name in [agent] if agent else AGENTS:
                            self.expected[name] = []
            except (Crash, StorageUnavailable):
                pass
        known = {message["record"]["request_id"] for message in self.queued}
        self.queued += [message for message in self.ledger.queued() if message["record"]["request_id"] not in known]

    async def read_audit(self) -> None:
        """Add the new records of the audit to the expected usage."""
        records = await self.ledger.store.table.query(keys.audit_partition(self.ledger.store.tenant, RequestId("req_outer")))
        for record in records:
            if record["request_id"] not in self.seen:
                self.seen.add(RequestId(cast(str, record["request_id"])))
                if record["kind"] != "tool" and (record["status"] == "ok" or record["prompt_tokens"]):
                    self.expected.setdefault(cast("AgentName | None", record.get("agent")), []).append(record)
                    month = cast(str, record["at"])[:7]
                    self.cost[month] = self.cost.get(month, Decimal(0)) + Decimal(cast(str, record["cost_usd"]))

    async def check(self) -> None:
        answer: Any = (await usage(self.ledger.store, UsageQuery(first=TODAY - timedelta(days=45)))).to_dict()
        reported = {row["key"]: row for row in answer["usage"]}
        counted = {agent: records for agent, records in self.expected.items() if records}
        assert reported.keys() == counted.keys()
        for agent, records in counted.items():
            assert reported[agent]["requests"] == len(records)
            assert reported[agent]["prompt_tokens"] == sum(cast(int, record["prompt_tokens"]) for record in records)
            assert reported[agent]["completion_tokens"] == sum(cast(int, record["completion_tokens"]) for record in records)
            assert Decimal(reported[agent]["cost_usd"]) == sum(Decimal(cast(str, record["cost_usd"])) for record in records)
        assert answer["total"]["requests"] == sum(map(len, counted.values()))
        for month in MONTHS:
            assert await spending_of_month(self.ledger.store, month) == self.cost.get(month, 0)


@settings(max_examples=500 if SOAK else 15)
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_the_usage_equals_the_sum_of_the_audit_records(steps: list[Call | Delivery | Reset]) -> None:
    async def run() -> None:
        simulation = LedgerSimulation(LedgerHarness.create())
        for step in steps:
            await simulation.step(step)
            await simulation.read_audit()
            await simulation.check()
        # All messages of the queue are delivered in the end: a call is missing only if its worker died or the log has it.
        for message in simulation.queued:
            await audit.account(simulation.ledger.store, message["record"])
        await simulation.read_audit()
        await simulation.check()
        crashed = {step.record.request_id for step in steps if isinstance(step, Call) and _crashes(step.faults)}
        not_stored = {step.record.request_id for step in steps if isinstance(step, Call) and _cannot_be_stored(step.faults)}
        assert {record.request_id for record in simulation.calls} - simulation.seen <= crashed | not_stored

    asyncio.run(run())


def _crashes(faults: dict[int, Fault]) -> bool:
    return any(fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER) for fault in faults.values())


def _cannot_be_stored(faults: dict[int, Fault]) -> bool:
    return all(faults.get(number) in (Fault.THROTTLE, Fault.TIMEOUT) for number in (0, 1))
