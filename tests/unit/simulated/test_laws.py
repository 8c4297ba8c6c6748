"""The invariants of simulated histories: a correct history has no violations, and each kind of damage is detected."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest

from spass.core.ids import MessageId
from spass.core.messages import Message, Role
from spass.core.time import Timestamp
from spass.sessions.compaction.plan import SummaryRecord
from spass.sessions.record import StoredMessage, TurnRecord
from spass.sessions.session import CreateSession, Hold, HoldKind, Session
from tests.simulated.gateway import Gateway
from tests.simulated.invariants import Chain, ChainMember, ClientLog, Reading, head_violations, violations
from tests.simulated.schedule import NO_FAULTS, Schedule, run_schedule

QUESTIONS: Final = 58


@dataclass(slots=True)
class RecordedHistory:
    """A stored chain and a log, which a test damages. ``last`` is the last session of the chain."""

    chain: list[ChainMember]
    log: ClientLog

    @property
    def last(self) -> ChainMember:
        return self.chain[-1]

    def replace_turns(self, turns: Sequence[TurnRecord]) -> None:
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
        self.replace_turns(numbered)

    def violations(self) -> list[str]:
        chains: list[Chain] = [self.chain]
        return violations(chains, self.log)


@pytest.fixture(scope="module")
def recorded() -> RecordedHistory:
    """Run one client that sends about sixty questions in sequence and reads in between, while the session is compacted."""
    schedule = Schedule(2, NO_FAULTS)
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
def story(recorded: RecordedHistory) -> RecordedHistory:
    """Return a copy of the recorded history, which a test may damage."""
    log = recorded.log
    copy = ClientLog(dict(log.asked), dict(log.told), set(log.refused), list(log.readings), dict(log.shown))
    return RecordedHistory(list(recorded.chain), copy)


def test_a_good_history_has_no_violations(story: RecordedHistory) -> None:
    assert story.violations() == []


def with_other_ids(turn: TurnRecord) -> TurnRecord:
    return replace(turn, messages=tuple(replace(stored, id=MessageId(f"{stored.id}x")) for stored in turn.messages))


def lose_the_last_turn(story: RecordedHistory) -> None:
    story.renumber(story.last.turns[:-1])


def lose_a_turn_in_the_middle(story: RecordedHistory) -> None:
    story.renumber([*story.last.turns[:-3], *story.last.turns[-2:]])


def record_a_turn_twice(story: RecordedHistory) -> None:
    copy = replace(
        story.last.turns[-1], messages=tuple(replace(m, id=MessageId(f"{m.id}x")) for m in story.last.turns[-1].messages)
    )
    story.renumber([*story.last.turns, copy])


def leave_a_gap(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.replace_turns([*before, replace(last, messages=tuple(replace(stored, seq=stored.seq + 1) for stored in last.messages))])


def swap_two_turns(story: RecordedHistory) -> None:
    *before, one, two = story.last.turns
    story.renumber([*before, two, one])


def cut_a_turn(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.replace_turns([*before, replace(last, messages=last.messages[:-1])])


def change_the_ids(story: RecordedHistory) -> None:
    *before, last = story.last.turns
    story.replace_turns([*before, with_other_ids(last)])


def forget_the_request(story: RecordedHistory) -> None:
    del story.log.asked["last question 3"]


def log_a_refusal(story: RecordedHistory) -> None:
    story.log.refused.add("last question 3")


def log_another_history(story: RecordedHistory) -> None:
    answer = story.last.turns[-1].answer.message.content
    story.log.shown[answer] = story.log.shown[answer][:-1]


def remove_the_last_session(story: RecordedHistory) -> None:
    story.chain.pop()


def fork_the_chain(story: RecordedHistory) -> None:
    story.chain.append(replace(story.last, session=replace(story.last.session, parent_session_id=story.chain[0].session.id)))


def archive_without_a_successor(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, session=replace(story.last.session, archived_at=Timestamp("2027")))


def change_the_first_turn(
    story: RecordedHistory, change: Callable[[tuple[StoredMessage, ...]], tuple[StoredMessage, ...]]
) -> None:
    """Apply ``change`` to the first messages of the successor."""
    first, *others = story.last.turns
    story.chain[-1] = replace(story.last, turns=[replace(first, messages=change(first.messages)), *others])


def reword_a_kept_message(story: RecordedHistory) -> None:
    change_the_first_turn(story, lambda kept: (*kept[:-1], replace(kept[-1], message=Message(Role.ASSISTANT, "something else"))))


def redate_a_kept_message(story: RecordedHistory) -> None:
    change_the_first_turn(story, lambda kept: (*kept[:-1], replace(kept[-1], created_at=Timestamp("2027"))))


def copy_an_old_id(story: RecordedHistory) -> None:
    old = story.chain[-2].messages[-1].id
    change_the_first_turn(story, lambda kept: (*kept[:-1], replace(kept[-1], id=old)))


def last_summary(story: RecordedHistory) -> SummaryRecord:
    assert story.last.summary is not None
    return story.last.summary


def remove_the_summary(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=None)


def change_the_summary_text(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=replace(last_summary(story), text="3 messages"))


def change_the_summary_range(story: RecordedHistory) -> None:
    story.chain[-1] = replace(story.last, summary=replace(last_summary(story), last_seq=1))


def add_reading(story: RecordedHistory, messages: int, at: float) -> None:
    stored = [(stored.id, stored.message.content) for stored in story.last.messages[:messages]]
    story.log.readings.append(Reading(story.last.session.id, stored, True, at, at))


def read_without_a_turn(story: RecordedHistory) -> None:
    add_reading(story, 0, story.log.told["last question 4"].ended)


def read_half_a_turn(story: RecordedHistory) -> None:
    add_reading(story, len(story.last.messages) - 1, story.log.told["last question 4"].ended)


def read_before_the_request(story: RecordedHistory) -> None:
    add_reading(story, len(story.last.messages), 0.0)


def read_less_later(story: RecordedHistory) -> None:
    del story.log.told["last question 4"]
    add_reading(story, len(story.last.messages) - len(story.last.turns[-1].messages), 2e9)


def read_another_text(story: RecordedHistory) -> None:
    story.log.readings.append(Reading(story.last.session.id, [("msg_1", "something else")], False, 2e9, 2e9))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose_the_last_turn, "lost: last question 4"),
        (lose_a_turn_in_the_middle, "lost: last question 2"),
        (record_a_turn_twice, "twice: last question 4"),
        (leave_a_gap, "gap: "),
        (swap_two_turns, "reordered: last question 3 was answered before last question 4 was asked"),
        (cut_a_turn, "incomplete turn: last question 4"),
        (change_the_ids, "recorded turn differs from its answer: last question 4"),
        (forget_the_request, "never asked: last question 3"),
        (log_a_refusal, "recorded although refused: last question 3"),
        (log_another_history, "the agent got another history: last question 4"),
        (remove_the_last_session, "wrong successor: "),
        (fork_the_chain, "fork: "),
        (archive_without_a_successor, "wrong successor: "),
        (reword_a_kept_message, "kept messages were changed: "),
        (redate_a_kept_message, "kept messages were changed: "),
        (copy_an_old_id, "copies with the ids of the originals: "),
        (remove_the_summary, "missing summary: "),
        (change_the_summary_text, "summary of other messages: "),
        (change_the_summary_range, "wrong range of the summary: 1 to 1: "),
        (read_without_a_turn, "missing in a reading: last question 4"),
        (read_half_a_turn, "half a turn: "),
        (read_before_the_request, "read before it was asked: "),
        (read_less_later, "read less than before: "),
        (read_another_text, "not a prefix of the history: "),
    ],
)
def test_damage_of_a_history_is_detected(
    story: RecordedHistory, damage: Callable[[RecordedHistory], None], expected: str
) -> None:
    damage(story)
    violations = story.violations()
    assert any(violation.startswith(expected) for violation in violations), violations


def test_taking_a_live_hold_or_changing_an_archived_session_is_a_violation(story: RecordedHistory) -> None:
    session, archived = replace(story.last.session, next_seq=5), story.chain[0].session
    mine, yours = Hold("turn_1", HoldKind.TURN, 100), Hold("turn_2", HoldKind.TURN, 200)
    with_hold = replace(session, hold=mine)

    def kinds(before: Session, after: Session, now: float = 99.0) -> list[str]:
        return [violation.partition(" ")[0] for violation in head_violations(before, after, now)]

    assert kinds(session, with_hold) == []
    assert kinds(with_hold, replace(session, hold=yours)) == ["taken"]
    assert kinds(with_hold, replace(session, hold=yours), now=100.0) == []
    assert kinds(with_hold, replace(session, hold=replace(mine, expires_at=120))) == []
    assert kinds(with_hold, replace(session, next_seq=7)) == []
    assert kinds(session, replace(session, next_seq=7)) == ["went"]
    assert kinds(with_hold, replace(session, next_seq=4)) == ["went"]
    assert kinds(archived, replace(archived, title="new")) == ["changed"]
