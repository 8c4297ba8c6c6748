"""What a stream and the history say that a turn has cost is the sum of its audit records, also if it was compacted or stopped."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from tests.functions.gateway import Gateway
from tests.functions.random_turns import MODEL_KINDS, RandomTurn, agent_of, install
from tests.functions.stream_workers import Response, Worker, virtual_time
from tests.functions.test_stream_cuts import LONG_HISTORY, in_time
from tests.sampling import SOAK
from tests.stream_grammar import of_type, parse_events

TURNS = 600 if SOAK else 100


async def chat(worker: Worker, turn: RandomTurn, random: Random, name: str) -> Response:
    """Return the stream of a chat. Half of the chats are stopped at a random moment."""
    path = f"/c1/agents/{agent_of(turn.kind)}/chat"
    earlier = LONG_HISTORY if turn.characters else []
    body = {"message_id": name, "messages": [*earlier, {"role": "user", "content": "Go on."}]}
    turning = asyncio.create_task(worker.send("POST", path, body=body))
    if random.random() < 0.5:
        await asyncio.sleep(random.choice([0.5, 5.0, 30.0, 90.0]) * random.random())
        assert (await worker.send("DELETE", f"{path}/{name}")).status in (200, 202, 404)
    return await turning


async def audited(worker: Worker, request_id: str) -> list[Any]:
    """Return all calls of a request."""
    tree = await worker.send("GET", f"/v1/audit/{request_id}", token="demo-admin-token")
    assert tree.status == 200, tree
    return flatten(tree.json["calls"])


def flatten(calls: Sequence[Any]) -> list[Any]:
    return [entry for call in calls for entry in (call, *flatten(call["calls"]))]


async def check_cost(worker: Worker, gateway: Gateway, number: int, seen: Counter[str]) -> None:
    random = Random(f"cost {number}")
    turn = RandomTurn.of(random, random.choice(MODEL_KINDS))
    gateway.model.script = in_time(turn, random)
    events = parse_events((await chat(worker, turn, random, f"m-{number}")).body)
    if events[-1]["type"] != "done":
        return
    (usage,), (done,) = of_type(events, "usage"), of_type(events, "done")
    calls = await audited(worker, done["request_id"])
    assert sum(Decimal(call["cost_usd"] or 0) for call in calls) == Decimal(usage["cost"]["usd"]), number
    assert float(usage["cost"]["usd"]) == usage["cost_usd"]
    history = await worker.send("GET", f"/a1/agents/{agent_of(turn.kind)}/sessions/{done['session_id']}/messages?limit=1000")
    last = history.json["messages"][-1]
    assert (last["id"], last["usage"], last["cost_usd"]) == (done["message"]["id"], usage["usage"], usage["cost"]["usd"])
    seen[done["finish_reason"]] += 1
    seen["compaction"] += done["compaction"] is not None
    seen["compaction and stop"] += done["compaction"] is not None and done["finish_reason"] == "cancelled"
    seen["embedding"] += any(call["kind"] == "embedding" for call in calls)
    seen["cost"] += usage["cost_usd"] > 0


def test_the_cost_of_a_stream_is_the_sum_of_its_audit(gateway: Gateway, tmp_path: Path) -> None:
    gateway = install(gateway, tmp_path / "kinds")
    worker, seen = Worker.start(gateway.services.settings, gateway.model, gateway.aws), Counter[str]()
    with virtual_time() as loop:
        for number in range(TURNS):
            loop.run_until_complete(check_cost(worker, gateway, number, seen))
    outcomes = ("stop", "cancelled", "compaction", "compaction and stop", "embedding", "cost")
    assert min(seen[name] for name in outcomes) > TURNS // 120, seen
