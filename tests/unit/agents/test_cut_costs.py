"""Cut random turns over the real pipeline and tools: the cost and the tokens of each turn are the sums of its audit records."""

import asyncio
import random
from collections import Counter
from decimal import Decimal
from typing import Final

import pytest

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.spec import AgentSpec, file_model
from spass.core.bus import EMPTY_BUS
from spass.core.events import Event, Failed, TurnFinished, collect
from spass.core.ids import TenantId
from spass.core.messages import FinishReason, TokenUsage
from spass.store import keys
from tests.unit.agents.driver_harness import check_events
from tests.unit.agents.test_driver import check_answer, check_messages
from tests.unit.agents.test_turn_events import AGENTS, RandomRuns

pytestmark = pytest.mark.anyio

TURNS: Final = 500


def random_spec(rng: random.Random) -> AgentSpec:
    fields = {"name": "tester", "model": "small", "system_prompt": "Be brief.", **rng.choice(AGENTS)}
    return file_model(str(fields["kind"])).model_validate(fields).spec()


async def audited(runs: RandomRuns) -> tuple[Decimal, TokenUsage]:
    """Return the cost and the tokens of all calls of the last request."""
    tenant = TenantId("acme")
    records = await runs.aws.for_tenant(tenant).table.query(keys.audit_partition(tenant, runs.requests[-1]))
    usd = sum((Decimal(str(record.get("cost_usd", 0))) for record in records), Decimal(0))
    prompt, completion = (
        sum(int(str(record.get(name, 0))) for record in records) for name in ("prompt_tokens", "completion_tokens")
    )
    return usd, TokenUsage(prompt, completion)


async def cut_turn(runs: RandomRuns, rng: random.Random) -> list[Event]:
    """Return the events of a turn that is stopped after a random number of iterations of the event loop."""
    scope, signal = runs.scope(), StopSignal()
    turn = runs.engine.run(scope, random_spec(rng), "How much?")
    events = interruptible(turn, signal=signal, deadline=None, tally=scope.tally)

    async def run() -> list[Event]:
        return [event async for event in events]

    running = asyncio.create_task(run())
    for _ in range(rng.randrange(60)):
        await asyncio.sleep(0)
    await asyncio.sleep(rng.choice([0, 0, 0.002]))
    signal.stop()
    return await running


async def test_the_usage_of_a_turn_that_is_cut_anywhere_equals_its_audit() -> None:
    rng = random.Random(14)
    runs, tasks, ends = RandomRuns(EMPTY_BUS, rng), asyncio.all_tasks(), Counter[str]()
    for _ in range(TURNS):
        events = await cut_turn(runs, rng)
        last = events[-1]
        assert await runs.tasks() == tasks, "a turn left a task"
        if isinstance(last, Failed):
            ends["failed"] += 1
            continue
        assert isinstance(last, TurnFinished)
        ends[last.finish_reason] += 1
        check_events(events, cut=last.finish_reason is FinishReason.CANCELLED)
        check_answer(events)
        check_messages(collect(events).messages)
        assert (last.cost.usd, last.usage) == await audited(runs)
    assert ends[FinishReason.CANCELLED] > TURNS / 10  # how many cuts come in time depends on the machine
    assert ends[FinishReason.STOP] > 10
