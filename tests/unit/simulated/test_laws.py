"""The invariants: a good history has no violations, and each way of breaking it is detected."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest

from spass.core.ids import MessageId
from spass.core.messages import Message, Role
from spass.core.time import Timestamp
from spass.sessions.compaction.summary_record import SummaryRecord
from spass.sessions.record import StoredMessage, TurnRecord
from spass.sessions.session import CreateSession, Hold, HoldKind, Session
from tests.simulated.gateway import Gateway
from tests.simulated.invariants import Chain, ChainMember, ClientLog, Reading, head_violations, violations
from tests.simulated.schedule import NO_FAULTS, Schedule, run_schedule

QUESTIONS: Final = 58


@dataclass(slots=True)
class RecordedHistory:
    """A stored chain and a log, which a test changes. ``last`` is the end of the chain."""

    chain: list[ChainMember]
    log: ClientLog

    @property
    def last(self) -> ChainMember:
        return self.chain[-1]

    def retell(self, turns: Sequence[TurnRecord]) -> None:
        """Give the last member these turns, and update its head."""
        end = turns[-1].next_seq
        self.chain[-1] = replace(self.last, turns=turns, session=replace(self.last.session, next_seq=end))

    def renumber(self, turns: Sequence[TurnRecord]) -> None:
        """Give the last member these turns, with new numbers and no gaps."""
        seq, numbered = 1, list[TurnRecord]()
        for turn in turns:
            messages = tuple(replace(stored, seq=seq + place) for place, stored in enumerate(turn.messages))
            numbered.append(replace(turn, messages=messages))
            seq += len(messages)
        self.retell(numbered)

    def violations(self) -> list[str]:
        chains: list[Chain] = [self.chain]
        return violations(chains, self.log)


@pytest.fixture(scope="module")
def told() -> RecordedHistory:
    """Run one client that sends about sixty questions in sequence and reads in between, while the session is compacted."""
    schedule = Schedule(1, NO_FAULTS)
    gateway = Gateway(schedule)

    async def story() -> Sequence[ChainMember]:
        session = await gateway.create(CreateSession(compact_strategy="auto", compact_keep_last_n=3))
        for number in range(QUESTIONS):
            assert await gateway.send(session, f"question {number}", f"key {number}")
        (chain,) = await gateway.chains()
        for _ in range(2):
            await gateway.read(chain[-1].session.id)
        for number in range(5):
            assert await gateway.send(chain[-1].session.id, f"last question {number}", None)
            await asyncio.sleep(1)
        await gateway.read(chain[-1].session.id)
        (chain,) = await gateway.chains()
        return chain

    chain = run_schedule(schedule, story)
    assert len(chain) > 2
    assert len(chain[-1].turns) > 6
    assert all(reading.to_the_end for reading in gateway.log.readings)
    return RecordedHistory(list(chain), gateway.log)


@pytest.fixture
def story(told: RecordedHistory) -> RecordedHistory:
    """It again, to be broken."""
    log = told.log
    copy = ClientLog(dict(log.asked), dict(log.told), set(log.refused), list(log.readings), dict(log.shown))
    return RecordedHistory(list(told.chain), copy)


def test_a_good_history_has_no_violations(story: RecordedHistory) -> None:
    assert story.violations() == []


def with_other_ids(turn: TurnRecord) -> TurnRecord:
    return replace(turn, messages=tuple(replace(stored, id=MessageId(f"{stored.id}x")) for stored in turn.messages))


def lost(story: RecordedHistory) -> None:
    story.renumber(story.last.turns[:-1])


def lost_in_the_middle(story: RecordedHistory) -> None:
    story.renumber([*story.last.turns[:-3], *story.last.turns[-2:]])


def doubled(story: RecordedHistory) -> None:
    again = replace(
        story.last.turns[-1], messages=tuple(replace(m, id=MessageId(f"{m.id}x")) for m in story.last.turns[-1].messages)
    )
    story.renumber([*story.last.turns, again])


def with_a_gap(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.retell([*before, replace(last, messages=tuple(replace(stored, seq=stored.seq + 1) for stored in last.messages))])


def reordered(story: RecordedHistory) -> None:
    *before, one, two = story.last.turns
    story.renumber([*before, two, one])


def torn(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.retell([*before, replace(last, messages=last.messages[:-1])])


def under_other_ids(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.retell([*before, with_other_ids(last)])


def invented(story: RecordedHistory) -> None:
    del story.log.asked["last question 3"]


def refused(story: RecordedHistory) -> None:
    story.log.refused.add("last question 3")


def shown_another_history(story: RecordedHistory) -> None:
    answer = story.last.turns[-1].answer.message.content
    story.log.shown[answer] = story.log.shown[answer][:-1]


def without_its_end(story: RecordedHistory) -> None:
    story.chain.pop()


def forked(story: RecordedHistory) -> None:
    story.chain.append(replace(story.last, session=replace(story.last.session, parent_session_id=story.chain[0].session.id)))


def archived_without_a_successor(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, session=replace(story.last.session, archived_at=Timestamp("2027")))


def changed_first(story: RecordedHistory, change: Callable[[tuple[StoredMessage, ...]], tuple[StoredMessage, ...]]) -> None:
    """The successor begins with something else."""
    first, *others = story.last.turns
    story.chain[-1] = replace(story.last, turns=[replace(first, messages=change(first.messages)), *others])


def reworded(story: RecordedHistory) -> None:
    changed_first(story, lambda kept: (*kept[:-1], replace(kept[-1], message=Message(Role.ASSISTANT, "something else"))))


def redated(story: RecordedHistory) -> None:
    changed_first(story, lambda kept: (*kept[:-1], replace(kept[-1], created_at=Timestamp("2027"))))


def with_the_old_ids(story: RecordedHistory) -> None:
    old = story.chain[-2].messages[-1].id
    changed_first(story, lambda kept: (*kept[:-1], replace(kept[-1], id=old)))


def summed_up(story: RecordedHistory) -> SummaryRecord:
    assert story.last.summary is not None
    return story.last.summary


def without_its_summary(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=None)


def summary_of_less(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=replace(summed_up(story), text="3 messages"))


def summary_to_elsewhere(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=replace(summed_up(story), last_seq=1))


def reading(story: RecordedHistory, messages: int, at: float) -> None:
    stored = [(stored.id, stored.message.content) for stored in story.last.messages[:messages]]
    story.log.readings.append(Reading(story.last.session.id, stored, True, at, at))


def unread(story: RecordedHistory) -> None:
    reading(story, 0, story.log.told["last question 4"].ended)


def half_read(story: RecordedHistory) -> None:
    reading(story, len(story.last.messages) - 1, story.log.told["last question 4"].ended)


def read_before_it_was_asked(story: RecordedHistory) -> None:
    reading(story, len(story.last.messages), 0.0)


def read_less_than_before(story: RecordedHistory) -> None:
    del story.log.told["last question 4"]
    reading(story, len(story.last.messages) - len(story.last.turns[-1].messages), 2e9)


def read_what_is_not_there(story: RecordedHistory) -> None:
    story.log.readings.append(Reading(story.last.session.id, [("msg_1", "something else")], False, 2e9, 2e9))


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (lost, "lost: last question 4"),
        (lost_in_the_middle, "lost: last question 2"),
        (doubled, "twice: last question 4"),
        (with_a_gap, "gap: "),
        (reordered, "reordered: last question 3 was answered before last question 4 was asked"),
        (torn, "torn: last question 4"),
        (under_other_ids, "not as it was told: last question 4"),
        (invented, "nobody asked: last question 3"),
        (refused, "refused and yet recorded: last question 3"),
        (shown_another_history, "its agent was shown something else: last question 4"),
        (without_its_end, "no end: "),
        (forked, "fork: "),
        (archived_without_a_successor, "no end: "),
        (reworded, "not kept word for word: "),
        (redated, "not kept word for word: "),
        (with_the_old_ids, "copies under old ids: "),
        (without_its_summary, "no summary: "),
        (summary_of_less, "not what was compacted: "),
        (summary_to_elsewhere, "a summary of 1 to 1: "),
        (unread, "unread: last question 4"),
        (half_read, "half a turn: "),
        (read_before_it_was_asked, "read before it was asked: "),
        (read_less_than_before, "read less than before: "),
        (read_what_is_not_there, "no beginning of the history: "),
    ],
)
def test_a_history_that_was_broken_is_seen_to_be(
    story: RecordedHistory, broken: Callable[[RecordedHistory], None], seen: str
) -> None:
    broken(story)
    found = story.violations()
    assert any(violation.startswith(seen) for violation in found), found


def test_no_write_may_take_a_session_that_is_held_or_change_one_that_is_archived(story: RecordedHistory) -> None:
    session, archived = replace(story.last.session, next_seq=5), story.chain[0].session
    mine, yours = Hold("turn_1", HoldKind.TURN, 100), Hold("turn_2", HoldKind.TURN, 200)
    held = replace(session, hold=mine)

    def found(before: Session, after: Session, now: float = 99.0) -> list[str]:
        return [trespass.partition(" ")[0] for trespass in head_violations(before, after, now)]

    assert found(session, held) == []
    assert found(held, replace(session, hold=yours)) == ["taken"]
    assert found(held, replace(session, hold=yours), now=100.0) == []
    assert found(held, replace(session, hold=replace(mine, expires_at=120))) == []
    assert found(held, replace(session, next_seq=7)) == []
    assert found(session, replace(session, next_seq=7)) == ["went"]
    assert found(held, replace(session, next_seq=4)) == ["went"]
    assert found(archived, replace(archived, title="new")) == ["changed"]
