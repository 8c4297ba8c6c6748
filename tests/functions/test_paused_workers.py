"""A worker pauses at each of its AWS calls for longer than its lease. When it resumes, another attempt has recorded the turn.

From then on its driver begins no effect, and the table stays as it is. There are two exceptions. The call in flight may arrive: a
chunk of the lost attempt, which nobody reads, or a hold, which is released at once. And model calls that were made are recorded.
(A repeated message to a compacted session is redirected and gets another stream, so the old one still belongs to its worker.)
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from spass.store import keys
from spass.store.invocation import ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Item
from tests.functions.chat_turns import KINDS, ChatTurn
from tests.functions.test_crashes import check_end, repeat
from tests.sampling import sampled
from tests.simulated.chats import TENANT, Answer, Chats, PausedProcess, Process, virtual_clocks
from tests.stream_grammar import parse_events

pytestmark = pytest.mark.anyio

Change: TypeAlias = tuple[Item | None, Item | None]
"""An item before and after a write."""


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    with virtual_clocks(stop_poll=5.0):
        yield Chats(tmp_path)


class PausedTurn:
    """A turn whose worker pauses until another worker has recorded the turn."""

    def __init__(self, turn: ChatTurn, process: PausedProcess) -> None:
        self.turn = turn
        self.process = process
        self._own_chunks = keys.stream_chunk_prefix(turn.digest, turn.attempt)
        self._own_head = keys.stream_head(TENANT, turn.digest)
        self.late_changes: list[Change] = []
        self.late_model_calls = 0

    async def run(self) -> Answer:
        """Return what the client of the paused worker received."""
        chats = self.turn.chats
        posting = asyncio.create_task(self.turn.send(self.process))
        stopping = asyncio.create_task(self.turn.stop())
        await self.process.paused.wait()
        await asyncio.sleep(LEASE_SECONDS + 1)
        await stopping
        last = await repeat(self.turn)
        stored, model_calls = self.stored(), len(chats.model.requests)
        chats.aws.table.watch = self._watch
        self.process.resumed.set()
        answer = await posting
        chats.aws.table.watch = lambda *_: None
        self.late_model_calls = len(chats.model.requests) - model_calls
        assert self.stored() == stored
        await check_end(self.turn, last)
        return answer

    def stored(self) -> Mapping[keys.Key, Item]:
        """Return all items except the records of model calls, the places of requests, the chunks of the lost attempt, and the
        head of its stream if no other attempt owns it."""
        items = {keys.Key(str(item["pk"]), str(item["sk"])): item for item in self.turn.chats.items()}
        return {key: item for key, item in items.items() if self._kind(key) is None}

    def _kind(self, key: keys.Key) -> str | None:
        """Return what the item under ``key`` is, if a late write may change it."""
        if "#AUDIT#" in key.pk or "#USAGE#" in key.pk:
            return "record of a model call"
        if "#LIMIT#FOLLOWERS#" in key.pk or "#LIMIT#TURNS#" in key.pk:
            return "place of a request"
        if key.sk.startswith(self._own_chunks):
            return "own chunk"
        is_redirected = self.turn.digest != self._own_head.pk.rpartition("#")[2]
        return "own head" if key == self._own_head and is_redirected else None

    def _watch(self, before: Item | None, after: Item | None) -> None:
        if before != after:
            self.late_changes.append((before, after))

    def late_kinds(self) -> Iterable[str]:
        """Yield what each late write has changed."""
        for before, after in self.late_changes:
            item = after or before or {}
            key = keys.Key(str(item["pk"]), str(item["sk"]))
            if kind := self._kind(key):
                yield kind
            elif before is not None and after == {**before, "hold": (after or {}).get("hold")}:
                yield "hold"
            elif after is not None and before == {**after, "hold": (before or {}).get("hold")}:
                yield "release"
            else:
                yield str(key)


def _holds(call: ServiceCall) -> bool:
    """Return whether a call acquires the hold of a session."""
    return "'hold':" in str(call.parameters)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_that_lost_its_stream_changes_nothing(
    chats: Chats, kind: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    turn = await ChatTurn.prepare(chats, kind)
    await asyncio.gather(turn.send(counted := Process()), turn.stop())
    late: Counter[str] = Counter()
    pauses = sampled([*itertools.product(range(len(counted.calls)), (False, True))], 3)
    for point, after in pauses:
        turn = await ChatTurn.prepare(chats, kind)
        paused = PausedTurn(turn, PausedProcess(at=point, after=after))
        call = counted.calls[point]
        try:
            answer = await paused.run()
            assert answer.status == 503 or parse_events(answer.body)
            kinds = list(paused.late_kinds())
            assert set(kinds) <= {"record of a model call", "place of a request", "own chunk", "own head", "hold", "release"}
            assert ("hold" in kinds) <= (not after and _holds(call))
            assert paused.late_model_calls == 0
        except Exception as error:
            error.add_note(f"pause {'after' if after else 'before'} call {point}: {call.operation} {call.parameters}")
            raise
        late.update(kinds)
        capsys.readouterr()
    record_property("late writes", dict(late))
    record_property("points_tried", len(pauses))
