"""Turns that are stopped at random moments, on another worker: each is recorded once as a valid conversation, with all that was
streamed before the stop, and the next turn continues it. Time is virtual.

``SPASS_SEED=7 pytest …`` runs one stop only.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spass.core.ids import AgentName, UserId
from spass.core.messages import Message, Role
from spass.journal.head import StreamHead, StreamState, read_head, stream_digest
from spass.models.providers.anthropic import messages_body
from spass.models.providers.openai_compatible import chat_body
from spass.sessions.record import TurnRecord
from spass.testing.faults import inject
from tests.functions.stopped_turns import SlowCommits, StoppedChats
from tests.sampling import SOAK
from tests.simulated.chats import AGENT, USER, Answer, Chats, Process, virtual_clocks
from tests.stream_grammar import Event, answer_text, of_type, parse_events, receive
from tests.unit.virtual_time import VirtualLoop
from tests.valid_conversations import check_anthropic, check_openai

STOPS: Final = 5000 if SOAK else 200
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else list(range(STOPS))
QUESTION: Final = "And now?"
MAX_SECONDS: Final = 2.0
PLACES: Final = {
    "before the first call",
    "before the first token",
    "in the text",
    "in a tool",
    "in an edit",
    "in a compaction",
    "between two calls",
    "in the commit",
    "after the end",
}
"""Where a stop reaches a turn."""


def test_a_turn_stopped_anywhere_is_recorded_once_and_can_be_continued(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    places: Counter[str] = Counter()

    async def stop_all() -> None:
        chats = StoppedChats(tmp_path)
        with chats.watching_stops():
            for seed in SEEDS:
                try:
                    places.update(await Stop(chats, seed).run())
                except BaseException as error:
                    error.add_note(f"SPASS_SEED={seed}")
                    raise

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, virtual_clocks():
        runner.run(stop_all())
    for place, count in places.items():
        record_property(f"stops {place}", count)
    assert len(SEEDS) == 1 or places.keys() >= PLACES


class Stop:
    """One turn and its stop, at a random moment of a random script."""

    def __init__(self, chats: StoppedChats, seed: int) -> None:
        self.chats = chats
        self.rng = chats.begin(seed)
        self.process = SlowCommits(seconds=self.rng.choice([0.0, 0.0, 0.0, 2.0 * self.rng.random()]))
        self.answer = Answer()
        self.is_chat = self.rng.random() < 0.7
        entries, length = self.rng.choice([(0, 0), (6, 10), (6, 5000)])
        self.entries = [{"role": ("user", "assistant")[at % 2], "content": f"{at} " + "x" * length} for at in range(entries)]
        self.overflow_at = self.rng.randrange(2) if length == 10 and self.rng.random() < 0.7 else None

    async def run(self) -> set[str]:
        """Stop the turn, check everything, and return where the stop reached it."""
        client, app = self.chats.leaving()
        turn = asyncio.create_task(self._begin(client))
        await asyncio.sleep(self.rng.choice([0.02, 1.0, 5.0]) * self.rng.random())
        message_id = await self._message_id()
        if self.rng.random() < 0.2:
            app.left.set()
        status = await self._stop(message_id)
        stopped_at, seen = asyncio.get_running_loop().time(), receive(self.answer.body).events
        await turn
        assert self.answer.is_whole or app.left.is_set()
        place = await self._check_turn(message_id, status, stopped_at, seen)
        await self._check_continuation()
        return place

    async def _begin(self, client: Chats) -> None:
        """Send the message to a session that begins with the entries: as a chat, or with a key under /a1."""
        model, question = self.chats.slow_model, {"role": "user", "content": QUESTION}
        if self.is_chat:
            model.overflow_at = self.overflow_at
            body = {"message_id": "m-1", "session_id": "chat", "messages": [*self.entries, question]}
            await client.post(body, process=self.process, answer=self.answer)
            return
        steps, model.steps = model.steps, 1
        opening = {"message_id": "m-0", "session_id": "chat", "messages": [*self.entries, {"role": "user", "content": "Hi"}]}
        (done,) = of_type(parse_events((await self.chats.post(opening)).body), "done")
        model.steps, model.step, model.overflow_at = steps, 0, self.overflow_at
        model.requests.clear()
        path, message = f"/a1/agents/{AGENT}/sessions/{done['session_id']}/messages", {"message": QUESTION, "stream": True}
        headers = {"idempotency-key": "key-1"}
        await client.send("POST", path, message, process=self.process, answer=self.answer, headers=headers)

    async def _message_id(self) -> str:
        """Return the id of the stream, which the gateway chooses under /a1."""
        while not self.is_chat and not receive(self.answer.body).events:
            await asyncio.sleep(0.01)
        return "m-1" if self.is_chat else str(receive(self.answer.body).events[0]["message_id"])

    async def _stop(self, message_id: str) -> str:
        """Stop the turn on either worker, once or twice. Return the status of the first answer."""
        statuses: list[str] = []
        while len(statuses) < self.rng.choice([1, 2]):
            stopped = await self.rng.choice([self.chats, self.chats.elsewhere]).stop(message_id)
            if stopped.status == 404:
                assert not statuses
                await asyncio.sleep(0.01)
                continue
            assert stopped.status == (202 if stopped.json["status"] == "cancelling" else 200)
            statuses.append(stopped.json["status"])
        return statuses[0]

    async def _check_turn(self, message_id: str, status: str, stopped_at: float, seen: Sequence[Event]) -> set[str]:
        work = self.chats.work
        assert work.running == 0, "a call of a model or a tool is still running"
        again, replay = await self.chats.stop(message_id), await self.chats.follow(message_id)
        assert replay.body == self.answer.body or (not self.answer.is_whole and replay.body.startswith(self.answer.body))
        events = parse_events(replay.body)
        assert events[: len(seen)] == list(seen)
        (turn,) = [turn for turn in await self._turns() if turn.messages[0].message.content == QUESTION]
        (done,) = of_type(events, "done")
        head = await self._head(message_id)
        assert (again.status, again.json["status"], head.state, head.stop) == (200, "done", StreamState.DONE, status != "done")
        assert done["message"]["id"] == turn.answer.id
        assert done["finish_reason"] == turn.finish_reason
        assert turn.answer.message.content == answer_text(events)
        self._check_results(events, turn)
        self._check_versions(events)
        if done["finish_reason"] != "cancelled":
            return {"after the end" if status == "done" else "in the commit"}
        assert status == "cancelling"
        assert work.last_end <= stopped_at + MAX_SECONDS
        assert work.begun == work.begun_before_stop, "an effect began after the stop"
        if not self.chats.model.requests:
            return {"before the first call"}
        return set(work.cuts) or {"between two calls"}

    def _check_results(self, events: Sequence[Event], turn: TurnRecord) -> None:
        """Assert that the turn has the result of each call that the stream shows."""
        shown = {call["id"]: call["result"] for call in of_type(events, "tool_call")}
        stored = {message.tool_call_id: message.content for message in _messages([turn]) if message.role is Role.TOOL}
        assert stored.keys() == shown.keys()
        assert all(json.loads(stored[identity]) == shown[identity] for identity in shown)

    def _check_versions(self, events: Sequence[Event]) -> None:
        """Assert that there are the versions that the stream shows. A stop may reach a call while it commits one more."""
        calls = [call for call in of_type(events, "tool_call") if call["tool"] == "aider_edit"]
        shown = [call["result"]["version"] for call in calls if call["ok"]]
        versions = self.chats.versions()
        assert versions[: len(shown)] == sorted(shown)
        assert len(shown) <= len(versions) <= self.chats.work.edited
        cut_off = [call for call in calls if not call["ok"] and call["result"]["error"]["code"] == "cancelled"]
        assert len(versions) - len(shown) <= len(cut_off)

    async def _check_continuation(self) -> None:
        """Send the next message, and assert that its request is the live history in a form that providers accept."""
        model, (live,) = self.chats.slow_model, [session for session in self.chats.sessions() if session.archived_at is None]
        turns = await self.chats.turns(live.id)
        model.requests.clear()
        model.steps, model.step, model.overflow_at = 1, 0, None
        next_turn = {"message_id": "m-2", "session_id": "chat", "messages": [{"role": "user", "content": "Go on."}]}
        events = parse_events((await self.chats.post(next_turn)).body)
        assert of_type(events, "done")[0]["finish_reason"] == "stop"
        assert all(session.hold is None for session in self.chats.sessions())
        request = next(request for request in model.requests if request.tools)
        check_openai(_entries(chat_body(request, "max_tokens")))
        check_anthropic(_entries(messages_body(request)))
        if any(request.model == "dear" for request in model.requests):
            return  # a compaction before this turn replaced the history by a summary
        kept = [message for message in _messages(turns) if message.content or message.tool_calls]
        sent = [message for message in request.messages if message.role is not Role.SYSTEM][:-1]
        assert [message.role for message in sent] == [message.role for message in kept]
        for message, stored in zip(sent, kept, strict=True):
            assert (message.tool_calls, message.tool_call_id) == (stored.tool_calls, stored.tool_call_id)
            assert stored.content == message.content or message.role is Role.TOOL  # results are marked as data

    async def _turns(self) -> list[TurnRecord]:
        return [turn for session in self.chats.sessions() for turn in await self.chats.turns(session.id)]

    async def _head(self, message_id: str) -> StreamHead:
        with inject(Process()):
            head = await read_head(self.chats.store, stream_digest(UserId(USER), AgentName(AGENT), message_id))
        assert head is not None
        return head


def _messages(turns: Sequence[TurnRecord]) -> list[Message]:
    return [stored.message for turn in turns for stored in turn.messages]


def _entries(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries: list[Mapping[str, Any]] = body["messages"]
    return entries
