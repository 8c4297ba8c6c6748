"""Invariants of a history under any interleaving of requests, faults and time. They compare what is stored at the end with the
answers that clients got."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Final, NamedTuple

from spass.core.ids import SessionId
from spass.core.messages import Message, Role
from spass.sessions.compaction.plan import SummaryRecord, format_summary_message
from spass.sessions.record import StoredMessage, TurnRecord
from spass.sessions.session import Session

TURN_ROLES: Final = ([Role.USER, Role.ASSISTANT], [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT])
"""The roles of the messages in the scripted agent's turns."""


class Acknowledgement(NamedTuple):
    """An answer to a client: its question is recorded in ``session`` as ``messages`` (ids, roles and texts), the first of which
    has the number ``first_seq``. The request ran from ``began`` to ``ended``, in seconds."""

    session: SessionId
    first_seq: int
    messages: Sequence[tuple[str, str, str]]
    began: float
    ended: float


class Reading(NamedTuple):
    """One reading of ``session``: ids and texts. ``to_the_end`` is True if it reached the end of the history."""

    session: SessionId
    messages: Sequence[tuple[str, str]]
    to_the_end: bool
    began: float
    ended: float


@dataclass(slots=True)
class ClientLog:
    """Observations of clients and agents.

    ``asked``: the time at which each question was first sent. ``told``: the answer to each question. ``refused``: the questions
    that were refused at every attempt. ``shown``: the history that the agent got before each answer.
    """

    asked: dict[str, float] = field(default_factory=dict)
    told: dict[str, Acknowledgement] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    readings: list[Reading] = field(default_factory=list)
    shown: dict[str, Sequence[Message]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainMember:
    """A stored session of a chain, with the summary that it starts with."""

    session: Session
    turns: Sequence[TurnRecord]
    summary: SummaryRecord | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        return [stored for turn in self.turns for stored in turn.messages]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn of a chain. ``before`` is the number of messages before it in its session."""

    member: ChainMember
    before: int
    messages: Sequence[StoredMessage]

    @property
    def question(self) -> str:
        return self.messages[0].message.content


Chain = Sequence[ChainMember]


def violations(chains: Sequence[Chain], log: ClientLog) -> list[str]:
    """Return all violations of the invariants."""
    found: list[str] = []
    places: dict[str, RecordedTurn] = {}
    for chain in chains:
        found += _number_violations(chain)
        found += _link_violations(chain)
        turns = list(_recorded_turns(chain))
        for turn in turns:
            if turn.question in places:
                found.append(f"twice: {turn.question}")
            places[turn.question] = turn
            found += _turn_violations(turn, log)
        found += _order_violations(turns, log)
    found += [f"never asked: {question}" for question in places.keys() - log.asked.keys()]
    found += [f"recorded although refused: {question}" for question in places.keys() & log.refused]
    found += _answer_violations(places, log)
    members = {member.session.id: member for chain in chains for member in chain}
    return [*found, *_all_reading_violations(members, places, log)]


def head_violations(before: Session, after: Session, now: float) -> Iterator[str]:
    """Yield the violations of a write to a session's head."""
    if before.hold is not None and after.hold is not None and before.hold.owner != after.hold.owner and before.hold.live(now):
        yield f"taken by {after.hold.owner}, while {before.hold.owner} held it: {before.id} at {now}"
    if before.archived_at is not None and before != after:
        yield f"changed after it was archived: {before.id} at {now}"
    if after.next_seq < before.next_seq or (after.next_seq > before.next_seq and before.hold is None):
        yield f"went from {before.next_seq} to {after.next_seq} while {before.hold} held it: {before.id} at {now}"


def summary_of(earlier: str | None, messages: Sequence[Message]) -> str:
    """Return a summary that identifies its messages."""
    words = repr((earlier, [(message.role.value, message.content) for message in messages]))
    return f"{len(messages)} messages {sha256(words.encode()).hexdigest()[:24]}"


def _number_violations(chain: Chain) -> Iterator[str]:
    for member in chain:
        numbers = [stored.seq for stored in member.messages]
        if numbers != list(range(1, member.session.next_seq)):
            yield f"gap: {member.session.id} has {numbers}, and its next number is {member.session.next_seq}"
        if len({stored.id for stored in member.messages}) < len(numbers):
            yield f"duplicate id: {member.session.id}"


def _link_violations(chain: Chain) -> Iterator[str]:
    for place, member in enumerate(chain):
        session = member.session
        before = chain[place - 1] if place else None
        after = chain[place + 1].session.id if place + 1 < len(chain) else None
        if session.parent_session_id != (before.session.id if before else None):
            yield f"fork: {session.id} follows {session.parent_session_id}"
        if (session.successor_session_id, session.archived_at is not None) != (after, after is not None):
            yield f"wrong successor: {session.id} is archived at {session.archived_at}; successor {session.successor_session_id}"
        if after is None and session.compacted_before != 1:
            yield f"compacted without a successor: {session.id}"
        if before is not None:
            yield from _successor_violations(before, member)


def _successor_violations(source: ChainMember, successor: ChainMember) -> Iterator[str]:
    """Yield a violation unless the successor starts with a summary of the compacted messages and with the kept messages."""
    cut = source.session.compacted_before
    compacted = [stored.message for stored in source.messages if stored.seq < cut]
    kept = [(stored.created_at, stored.message) for stored in source.messages if stored.seq >= cut]
    earlier = source.summary.text if source.summary else None
    copies = [(stored.created_at, stored.message) for stored in successor.turns[0].messages] if successor.turns else []
    record = successor.summary
    if record is None or (record.id, record.source) != (successor.session.summary_id, source.session.id):
        yield f"missing summary: {successor.session.id}"
        return
    if not copies or copies[0][1] != Message(Role.ASSISTANT, format_summary_message(record)) or copies[1:] != kept:
        yield f"kept messages were changed: {successor.session.id}"
    if not compacted or record.text != summary_of(earlier, compacted[1 if earlier is not None else 0 :]):
        yield f"summary of other messages: {record.text} in {successor.session.id}"
    if (record.first_seq, record.last_seq) != (1, cut - 1):
        yield f"wrong range of the summary: {record.first_seq} to {record.last_seq}: {successor.session.id}"
    if {stored.id for stored in source.messages} & {stored.id for stored in successor.messages}:
        yield f"copies with the ids of the originals: {successor.session.id}"


def _recorded_turns(chain: Chain) -> Iterator[RecordedTurn]:
    """Yield the turns of a chain in order, each in the session that recorded it, without the first items of successors."""
    for member in chain:
        before = 0
        for place, turn in enumerate(member.turns):
            if place or member.session.parent_session_id is None:
                yield RecordedTurn(member, before, turn.messages)
            before += len(turn.messages)


def _turn_violations(turn: RecordedTurn, log: ClientLog) -> Iterator[str]:
    """Yield a violation unless the turn is whole and its agent got exactly the messages before it."""
    answer = turn.messages[-1].message.content
    if [stored.message.role for stored in turn.messages] not in TURN_ROLES or not answer.endswith(f" to {turn.question}"):
        yield f"incomplete turn: {turn.question}"
    shown = log.shown.get(answer)
    if shown is None or list(shown) != [stored.message for stored in turn.member.messages[: turn.before]]:
        yield f"the agent got another history: {turn.question}"


def _order_violations(turns: Sequence[RecordedTurn], log: ClientLog) -> Iterator[str]:
    """Yield a violation if a turn follows one that was requested after its answer."""
    earliest, question = float("inf"), ""
    for turn in reversed(turns):
        if log.asked.get(turn.question, 0.0) > earliest:
            yield f"reordered: {question} was answered before {turn.question} was asked"
        answer = log.told.get(turn.question)
        if answer is not None and answer.ended < earliest:
            earliest, question = answer.ended, turn.question


def _answer_violations(places: Mapping[str, RecordedTurn], log: ClientLog) -> Iterator[str]:
    for question, answer in log.told.items():
        if question not in places:
            yield f"lost: {question}"
            continue
        turn = places[question]
        if (turn.member.session.id, turn.messages[0].seq) != (answer.session, answer.first_seq):
            yield f"recorded in another place than its answer names: {question}"
        if [(stored.id, stored.message.role.value, stored.message.content) for stored in turn.messages] != list(answer.messages):
            yield f"recorded turn differs from its answer: {question}"


def _all_reading_violations(
    members: Mapping[SessionId, ChainMember], places: Mapping[str, RecordedTurn], log: ClientLog
) -> Iterator[str]:
    """Yield a violation unless each reading is a prefix of the history with all turns answered before it and none after."""
    complete: dict[SessionId, list[Reading]] = {}
    for reading in log.readings:
        member = members.get(reading.session)
        if member is None:
            yield f"reading of an unknown session: {reading.session}"
            continue
        if list(reading.messages) != [(stored.id, stored.message.content) for stored in member.messages][: len(reading.messages)]:
            yield f"not a prefix of the history: a reading of {reading.session} at {reading.ended}"
        if reading.to_the_end:
            complete.setdefault(reading.session, []).append(reading)
            if len(reading.messages) not in accumulate((len(turn.messages) for turn in member.turns), initial=0):
                yield f"half a turn: a reading of {reading.session} at {reading.ended}"
    for turn in places.values():
        for reading in complete.get(turn.member.session.id, ()):
            yield from _reading_violations(turn, reading, log)
    for readings in complete.values():
        yield from _shrinking_readings(readings)


def _reading_violations(turn: RecordedTurn, reading: Reading, log: ClientLog) -> Iterator[str]:
    """Yield a violation if a reading lacks a turn that it must contain, or contains one that it cannot."""
    answer = log.told.get(turn.question)
    if answer is not None and answer.ended <= reading.began and len(reading.messages) < turn.before + len(turn.messages):
        yield f"missing in a reading: {turn.question} at {reading.began}"
    if log.asked.get(turn.question, 0.0) > reading.ended and len(reading.messages) > turn.before:
        yield f"read before it was asked: {turn.question}"


def _shrinking_readings(readings: Sequence[Reading]) -> Iterator[str]:
    """Yield a violation if a later reading is shorter than an earlier one."""
    by_end = sorted(readings, key=lambda reading: reading.ended)
    longest, at = 0, 0
    for reading in sorted(readings, key=lambda reading: reading.began):
        while at < len(by_end) and by_end[at].ended <= reading.began:
            longest = max(longest, len(by_end[at].messages))
            at += 1
        if len(reading.messages) < longest:
            yield f"read less than before: {reading.session} at {reading.began}"
