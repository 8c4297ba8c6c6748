"""Clients race on two names: they post, follow and stop streams, send blocking messages, compact and delete sessions.

Calls fail and processes crash. In the end the history of each session equals that of a model: the turns whose ends the clients
saw, in the order of their numbers. Each name belongs to the newest session of a chain, and nothing of a deleted session is left
but the links of a chain.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from spass.core.errors import SpassError
from spass.core.ids import SessionId, UserId
from spass.core.messages import Message, Role
from spass.journal.frames import EventId
from spass.store import keys
from tests.simulated.chat_log import Done, LedgerTurn, Words, reading_violations
from tests.simulated.compaction_executions import CompactionExecutions
from tests.simulated.gateway import AGENT, TENANT, USER
from tests.simulated.invariants import summary_of
from tests.simulated.racing_chats import IMPORTED, ChatGateway, Kind, Post
from tests.simulated.schedule import MANY_FAULTS, NO_FAULTS, FaultRates, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

CLIENTS: Final = 8
ACTIONS: Final = 3
SETTLE_SECONDS: Final = 400.0
NAMES: Final = ("notes", "plans")
OTHER_USER: Final = UserId("eve")
RACE_FAULTS: Final = FaultRates({fault: 2 * odds for fault, odds in MANY_FAULTS.odds.items()})
MUST_HAPPEN: Final = (
    "stopped turns",
    "deleted sessions",
    "compacted sessions",
    "lost streams",
    "moved streams",
    "resumed readings",
)
UNKNOWN: Final = ("crash", "storage_unavailable")
"""Outcomes of requests that faults disturbed."""


class Race:
    """Eight clients of one user, whose first message names a session that does not exist yet."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed, NO_FAULTS)
        self.gateway = ChatGateway(self.schedule, window=150)
        self.compactions = CompactionExecutions(self.gateway)
        self.posts: list[Post] = []
        self.unreachable: set[str] = set()
        """The questions whose outcome no client can learn, because their session is deleted."""
        self._deletes = self.schedule.rng.random() < 0.3

    async def run(self) -> None:
        self.schedule.fault_rates = RACE_FAULTS
        await asyncio.gather(*(self._run_client() for _ in range(CLIENTS)))
        await self._settle()
        await self._repeat_all()

    async def _run_client(self) -> None:
        for number in range(ACTIONS):
            await asyncio.sleep(self.schedule.random_delay(15.0))
            actions = (
                [self._post] if number == 0 else [self._post, self._post, self._follow, self._follow, self._stop, self._compact]
            )
            if self._deletes and number == ACTIONS - 1:
                actions.append(self._delete)
            await self.schedule.rng.choice(actions)()

    async def _post(self) -> None:
        """Send a message until its end is known, at most three times. Another client may have sent it, too."""
        rng, gateway = self.schedule.rng, self.gateway
        post = self._choose_post()
        for _ in range(3):
            reads = rng.randrange(1, 6) if rng.random() < 0.2 else None
            outcome = await gateway.post(post, reads=reads)
            if isinstance(outcome, Done):
                return
            if post.kind is not Kind.BLOCKING and outcome in ("cut", "crash") and rng.random() < 0.7:
                await self._resume(post.message_id)
            await asyncio.sleep(self.schedule.random_delay(40.0))

    def _choose_post(self) -> Post:
        rng = self.schedule.rng
        if self.posts and rng.random() < 0.3:
            return rng.choice(self.posts)
        kind = rng.choices(list(Kind), [5, 2, 2])[0]
        sessions = self._sessions()
        wanted: str | None = rng.choice(sessions) if sessions else None
        if kind is Kind.CHAT:
            wanted = rng.choices([*NAMES, wanted, None], [5, 1, 3, 1])[0]
        elif wanted is None:
            kind, wanted = Kind.CHAT, NAMES[0]
        key = f"key-{len(self.posts)}"
        if self.posts and rng.random() < 0.08:  # an id that is used for another body
            key = rng.choice(self.posts).key
        post = Post(kind, key, f"question {len(self.posts)}", wanted)
        self.posts.append(post)
        return post

    async def _resume(self, message_id: str) -> None:
        """Continue behind the last event that any client has of the stream, or behind one before it."""
        ids = [
            sent.id for reading in self.gateway.readings if reading.message_id == message_id for sent in reading.sent if sent.id
        ]
        await self.gateway.follow(message_id, self.schedule.rng.choice([*ids, ids[-1]]) if ids else None)

    async def _follow(self) -> None:
        rng = self.schedule.rng
        streams = [post for post in self.posts if post.kind is not Kind.BLOCKING]
        if not streams:
            return
        message_id = rng.choice(streams).message_id
        if rng.random() < 0.1:
            outcome = await self.gateway.follow(message_id, None, user=OTHER_USER)
            assert outcome in ("stream_not_found", *UNKNOWN), outcome
        elif rng.random() < 0.4:
            await self._resume(message_id)
        else:
            after = rng.choice([None, None, EventId(1, rng.randrange(1, 9)), EventId(2, 1), EventId(1, 999)])
            reads = rng.randrange(1, 6) if rng.random() < 0.2 else None
            await self.gateway.follow(message_id, after, reads)

    async def _stop(self) -> None:
        """Stop a stream: most often one that runs."""
        rng, gateway = self.schedule.rng, self.gateway
        streams = [post.message_id for post in self.posts if post.kind is not Kind.BLOCKING]
        running = await gateway.running_streams()
        if not streams:
            return
        message_id = rng.choice(running if running and rng.random() < 0.8 else streams)
        if rng.random() < 0.1:
            status = await gateway.stop(message_id, OTHER_USER)
            assert status in ("stream_not_found", *UNKNOWN), status
            return
        status = await gateway.stop(message_id)
        assert status != "done" or gateway.is_recorded(message_id), f"the stream {message_id} is done, and nothing is recorded"

    async def _compact(self) -> None:
        sessions = self._sessions()
        if sessions:
            session = self.schedule.rng.choice(sessions)
            await self.compactions.ask(session, None, follow=self.schedule.rng.random() < 0.5)

    async def _delete(self) -> None:
        sessions = self._sessions()
        if sessions:
            await self.gateway.delete(self.schedule.rng.choice(sessions))

    def _sessions(self) -> list[SessionId]:
        """Return the sessions that exist, archived ones included."""
        ledger = self.gateway.ledger
        return sorted(ledger.sessions.keys() - ledger.deleted)

    async def _settle(self) -> None:
        """Stop the faults, let all leases expire, and complete interrupted deletes."""
        gateway = self.gateway
        await self.schedule.calm()
        await self.compactions.settle()
        await gateway.settle()
        await asyncio.sleep(SETTLE_SECONDS)
        assert gateway.live_holds() == []
        for session in sorted(gateway.ledger.deleted):
            with suppress(SpassError):
                await gateway.sessions.delete(gateway.scope(), AGENT, session)

    async def _repeat_all(self) -> None:
        """Repeat each request until it has ended, and then once more: it must give the same turn."""
        for post in self.posts:
            outcome = await self.gateway.post(post)
            if isinstance(outcome, str):
                assert outcome in ("session_not_found", "idempotency_key_reused"), (post, outcome)
                if outcome == "session_not_found":
                    assert self.gateway.ledger.deleted, post
                    self.unreachable.add(post.question)
                continue
            assert await self.gateway.post(post) == outcome, post
        assert self.gateway.live_holds() == []


def build_model(race: Race) -> dict[SessionId, list[Words]]:
    """Return the histories of all sessions: what opens a session, and the turns whose ends clients saw, by their numbers. Because
    of a deletion, a turn may have an end that no client can see."""
    ledger, dones = race.gateway.ledger, race.gateway.dones
    turns: dict[SessionId, list[tuple[int, Sequence[Words]]]] = {session: [] for session in ledger.sessions}
    former = {turn.answer_id for turn in ledger.former}
    for done in dones.values():
        if done.question is not None and done.words is not None and done.answer_id not in former:
            turns[done.session].append((done.seq, [("user", done.question), *done.words]))
    seen = {answer for answer, done in dones.items() if done.question is not None and done.words is not None}
    for turn in ledger.turns.values():
        is_unseen = turn.answer_id not in seen and not ledger.is_first_turn(turn)
        places = {turn.session, ledger.sessions[turn.session].parent_session_id}  # the stream may have moved from the parent
        if is_unseen and (places & ledger.deleted or turn.question in race.unreachable):
            turns[turn.session].append((turn.first_seq + len(turn.words) - 1, turn.words))
    histories: dict[SessionId, list[Words]] = {}
    summaries: dict[SessionId, str] = {}
    for session in sorted(ledger.sessions):  # ids ascend, and a successor is younger than its source
        head = ledger.sessions[session]
        parent = ledger.sessions[head.parent_session_id] if head.parent_session_id is not None else None
        history: list[Words] = list(IMPORTED)
        if parent is not None:
            before, cut = histories[parent.id], parent.compacted_before - 1
            earlier = summaries.get(parent.id)
            compacted = before[1 if earlier is not None else 0 : cut]
            summaries[session] = summary_of(earlier, [Message(Role(role), words) for role, words in compacted])
            history = [("assistant", f"[compaction summary from session {parent.id}] {summaries[session]}"), *before[cut:]]
        for _, words in sorted(turns[session]):
            history += words
        histories[session] = history
    return histories


def done_violations(race: Race) -> Iterator[str]:
    """Check that each end that a client saw is a turn that was recorded, and as the stream showed it."""
    ledger = race.gateway.ledger
    by_answer = {turn.answer_id: turn for turn in (*ledger.turns.values(), *ledger.former)}
    for done in race.gateway.dones.values():
        turn = by_answer.get(done.answer_id)
        if turn is None or (turn.session, turn.first_seq + len(turn.words) - 1) != (done.session, done.seq):
            yield f"done without its turn: {done} and {turn}"
        elif done.words is not None and list(done.words) != list(turn.words[1:]):
            yield f"recorded in other words: {done} and {turn}"


def repeat_violations(race: Race) -> Iterator[str]:
    """Check that no question is recorded twice, unless a session of its stream was deleted before."""
    ledger, recorded = race.gateway.ledger, dict[str, list[LedgerTurn]]()
    for turn in ledger.turns.values():
        if not ledger.is_first_turn(turn):
            recorded.setdefault(turn.question, []).append(turn)
    kinds = {post.question: post.kind for post in race.posts}
    for question, turns in recorded.items():
        for turn in turns[:-1]:
            parent = ledger.sessions[turn.session].parent_session_id
            may_repeat = kinds[question] is Kind.CHAT and ledger.deleted & {turn.session, parent}
            if not may_repeat:
                yield f"recorded twice: {turns}"


def store_violations(gateway: ChatGateway) -> Iterator[str]:
    """Check the names, the user's list and what is left of deleted sessions against the heads."""
    items = list(gateway.aws.table.items())
    existing = {head.id: head for head in gateway.heads() if head.deleted_at is None}
    names = sorted((str(item["sk"])[5:], str(item["session"])) for item in items if str(item["sk"]).startswith("NAME#"))
    newest = [(head.name, head.id) for head in existing.values() if head.name is not None and head.archived_at is None]
    if names != sorted(newest):
        yield f"names of other sessions than the newest ones: {names} and {newest}"
    partition = keys.user_sessions_partition(TENANT, USER, AGENT)
    listed = {item["id"] for item in items if item["pk"] == partition and str(item["sk"]).startswith(keys.USER_SESSION_PREFIX)}
    if listed != existing.keys():
        yield f"listed: {listed}, and there are {existing.keys()}"
    for session in gateway.ledger.deleted:
        partition = keys.session_partition(TENANT, session)
        left = [str(item["sk"]) for item in items if item["pk"] == partition and item["sk"] != "HEAD"]
        left += [key for key in gateway.aws.bucket.keys if session in key]
        if left:
            yield f"left of the deleted session {session}: {left}"


async def check(race: Race) -> None:
    ledger = race.gateway.ledger
    assert ledger.trespasses == []
    assert list(reading_violations(race.gateway.readings)) == []
    assert list(done_violations(race)) == []
    assert list(repeat_violations(race)) == []
    assert list(store_violations(race.gateway)) == []
    model = build_model(race)
    for session in ledger.sessions.keys() - ledger.deleted:
        assert await race.gateway.words_of(session) == model[session], session


@seeded(20, in_soak=5000)
def test_eight_clients_that_race_leave_the_history_of_a_model(seeds: Sequence[int], record_property: Record) -> None:
    counts = run_seeds(seeds, run_race, record_property)
    assert len(seeds) == 1 or {name for name in MUST_HAPPEN if not counts[name]} == set()


def run_race(seed: int) -> dict[str, int]:
    """Return how often happened what must happen."""
    race = Race(seed)

    async def story() -> None:
        await race.run()
        await check(race)

    run_schedule(race.schedule, story)
    gateway, ledger = race.gateway, race.gateway.ledger
    done = gateway.dones.values()
    return {
        "recorded turns": len(done),
        "stopped turns": sum(turn.finish_reason == "cancelled" for turn in done),
        "deleted sessions": len(ledger.deleted),
        "compacted sessions": sum(head.archived_at is not None for head in ledger.sessions.values()),
        "readings": len(gateway.readings),
        "lost streams": sum(reading.error == "turn_lost" for reading in gateway.readings),
        "moved streams": sum(
            len({event.get("session_id") for event in reading.events if event.get("status") == "planning"}) > 1
            for reading in gateway.readings
        ),
        "attempts after the first": sum(reading.attempt > 1 for reading in gateway.readings),
        "resumed readings": sum(reading.first_n > 1 for reading in gateway.readings),
    }
