"""What a simulated world wrote to its table, and what the readers of its streams saw.

The ledger keeps every turn and every chunk that was ever stored, so that a deletion hides nothing from the checks.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from spass.core.ids import SessionId
from spass.journal.frames import Chunk, EventId
from spass.sessions.session import Session, decode_session
from spass.store.writes import Item
from tests.simulated.invariants import head_violations
from tests.stream_grammar import Event, SentEvent, answer_text, check_events, check_ids, of_type

Words = tuple[str, str]
"""The role and the text of a message."""


class LedgerTurn(NamedTuple):
    """A turn that was stored. ``answer_id`` is the id of its last message."""

    session: SessionId
    first_seq: int
    words: Sequence[Words]
    answer_id: str

    @property
    def question(self) -> str:
        return self.words[0][1]


@dataclass(slots=True)
class Ledger:
    """Every session, turn and chunk that was ever stored. ``sessions`` has each session as it was before its deletion.
    ``trespasses`` are writes that must not happen.

    If the worker of a chat dies before it holds the session that its claim names, and that session is deleted, then the next
    attempt creates it again under the same id. The turns of the one before are ``former``.
    """

    sessions: dict[SessionId, Session] = field(default_factory=dict)
    deleted: set[SessionId] = field(default_factory=set)
    turns: dict[tuple[SessionId, int], LedgerTurn] = field(default_factory=dict)
    former: list[LedgerTurn] = field(default_factory=list)
    chunks: dict[tuple[str, str, str], Chunk] = field(default_factory=dict)
    trespasses: list[str] = field(default_factory=list)

    def watch(self, before: Item | None, after: Item | None, now: float) -> None:
        """Record a write to the table that took effect at the time ``now``."""
        item = after or before
        if item is None:  # the delete of an absent item
            return
        pk, sk = str(item["pk"]), str(item["sk"])
        if "#SES#" not in pk:
            return
        if sk == "HEAD":
            self._watch_head(before, after, now)
        elif after is not None and sk.startswith("TURN#"):
            turn = _decode_turn(after)
            if turn != self.turns.setdefault((turn.session, turn.first_seq), turn):
                self.trespasses.append(f"overwritten: {turn} at {now}")
        elif after is not None and sk.startswith("STREAM#"):
            chunk = Chunk.of(after)
            if chunk != self.chunks.setdefault((pk, sk, str(after["owner"])), chunk):
                self.trespasses.append(f"a chunk was overwritten with other frames: {pk} {sk} at {now}")

    def is_first_turn(self, turn: LedgerTurn) -> bool:
        """Return whether the turn opens its session: imported messages, or what a compaction kept."""
        return turn.first_seq == 1 and not turn.question.startswith("question")

    def _watch_head(self, before: Item | None, after: Item | None, now: float) -> None:
        if after is None or "deleted_at" in after:
            self.deleted.add(decode_session(after or before or {}).id)
            return
        head = decode_session(after)
        if before is None and head.id in self.deleted:
            self.deleted.remove(head.id)
            self.former += [turn for turn in self.turns.values() if turn.session == head.id]
            self.turns = {place: turn for place, turn in self.turns.items() if turn.session != head.id}
        if before is not None and not _same_stream(decode_session(before), head):
            self.trespasses += head_violations(decode_session(before), head, now)
        self.sessions[head.id] = head


def _same_stream(before: Session, after: Session) -> bool:
    """Return whether a new attempt of a stream takes the hold over from the attempt before it."""
    return (
        before.hold is not None
        and after.hold is not None
        and before.hold.message_id is not None
        and before.hold.message_id == after.hold.message_id
    )


def _decode_turn(item: Item) -> LedgerTurn:
    messages: list[dict[str, Any]] = json.loads(str(item["body"]))["messages"]
    words = [(message["role"], as_words(message["role"], message["content"])) for message in messages]
    session = SessionId(str(item["pk"]).rpartition("#")[2])
    return LedgerTurn(session, messages[0]["seq"], words, messages[-1]["id"])


def as_words(role: str, content: str) -> str:
    """Return a text in the form in which texts are compared: the result of a tool as JSON without spaces."""
    return json.dumps(json.loads(content), separators=(",", ":")) if role == "tool" else content


def turn_words(results: Iterable[object], answer: str) -> list[Words]:
    """Return the messages that follow the question of a turn whose agent made one call at a time, with these ``results``."""
    calls = [[("assistant", ""), ("tool", json.dumps(result, separators=(",", ":")))] for result in results]
    return [*chain.from_iterable(calls), ("assistant", answer)]


class Done(NamedTuple):
    """A turn that clients know to be recorded. ``seq`` is the number of its answer. ``question`` is None as long as nobody who
    sent it saw the end, and ``words``, the messages that follow it, are None as long as nobody read the whole stream."""

    answer_id: str
    session: SessionId
    seq: int
    finish_reason: str
    question: str | None
    words: Sequence[Words] | None

    def merge(self, other: "Done") -> "Done":
        """Return what this client and another one know of the same turn. Assert that they do not contradict."""
        assert self[:4] == other[:4], f"two clients saw other ends of one turn: {self} and {other}"
        assert None in (self.question, other.question) or self.question == other.question, f"{self} and {other}"
        assert None in (self.words, other.words) or self.words == other.words, f"{self} and {other}"
        return self._replace(question=self.question or other.question, words=self.words or other.words)


@dataclass(frozen=True, slots=True)
class StreamReading:
    """One client's reading of the stream ``message_id``, from behind the event ``after``.

    ``error`` is the code of the error that ended it. ``left`` is True if the client disconnected.
    """

    message_id: str
    after: EventId | None
    sent: Sequence[SentEvent]
    error: str | None = None
    left: bool = False

    @property
    def events(self) -> list[Event]:
        return [sent.event for sent in self.sent]

    @property
    def is_from_start(self) -> bool:
        return bool(self.sent) and self.sent[0].event.get("status") == "planning" and self.first_n == 1

    @property
    def first_n(self) -> int:
        return self.sent[0].id.n if self.sent and self.sent[0].id is not None else 0

    @property
    def attempt(self) -> int:
        return self.sent[0].id.attempt if self.sent and self.sent[0].id is not None else 0

    @property
    def has_ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].event["type"] in ("done", "error")

    @property
    def failure(self) -> str | None:
        """Return the code with which the stream failed, if it did and if this client saw it."""
        last = self.sent[-1].event if self.sent else {}
        return last["error"]["code"] if last.get("type") == "error" else self.error

    def done(self, question: str | None) -> Done | None:
        """Return the recorded turn if the stream ended with ``done``. ``question`` is what this client sent."""
        if not self.sent or (done := self.sent[-1].event)["type"] != "done":
            return None
        words: list[Words] | None = None
        if self.is_from_start:
            calls = of_type(self.events, "tool_call")
            text = answer_text(self.events) if of_type(self.events, "token") else ""
            words = turn_words([call["result"] for call in calls], text)
        message = done["message"]
        return Done(message["id"], SessionId(done["session_id"]), message["seq"], done["finish_reason"], question, words)


def reading_violations(readings: Sequence[StreamReading]) -> Iterator[str]:
    """Check that each reading matches the grammar, and that all readings of an attempt are slices of one list of events.

    An id that became free, because a session was deleted, may be used for another stream. The request names its attempt.
    """
    lists: dict[tuple[str, int, str], list[Event]] = {}
    for reading in readings:
        sent = [sent for sent in reading.sent if sent.id is not None] if reading.left else reading.sent
        check_ids(sent, reading.after if reading.first_n > 1 else None)
        if reading.is_from_start:
            check_events(reading.events, whole=reading.has_ended)
            key = (reading.message_id, reading.attempt, str(reading.sent[0].event["request_id"]))
            events = [sent.event for sent in reading.sent if sent.id is not None]
            longest = lists.setdefault(key, events)
            if events[: len(longest)] != longest[: len(events)]:
                yield f"two readings of one attempt differ: {key}"
            if len(events) > len(longest):
                lists[key] = events
    for reading in readings:
        if not reading.sent or reading.sent[0].id is None:
            continue
        if reading.after is not None and reading.after.attempt == reading.attempt and reading.first_n != reading.after.n + 1:
            yield f"resumed at another place: {reading}"
        events = [sent.event for sent in reading.sent if sent.id is not None]
        first = reading.first_n - 1
        candidates = [
            list_ for (name, attempt, _), list_ in lists.items() if (name, attempt) == (reading.message_id, reading.attempt)
        ]
        if candidates and all(events[: max(0, len(list_) - first)] != list_[first:][: len(events)] for list_ in candidates):
            yield f"a reading is not a slice of its attempt: {reading}"
