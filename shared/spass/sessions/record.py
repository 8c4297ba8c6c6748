"""The record of a turn: one item with all its messages. A body too large for an item overflows to the bucket."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NamedTuple

from spass.core.codec import AsList, encode_record
from spass.core.cost import NO_COST, Cost, decimal_text
from spass.core.effects import ToolOutcome
from spass.core.events import Event, Outcome
from spass.core.ids import ApprovalId, MessageId, SessionId, UserId, new_id
from spass.core.json import dump, dump_bytes
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.core.time import Clock, Timestamp, timestamp
from spass.store import keys
from spass.store.codec import decode
from spass.store.overflow import Overflow
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Value

INLINE_BYTES: Final = 350_000
"""Bytes of the largest body in an item. DynamoDB allows 400 KiB for all attributes and their names."""

BODY: Final = Overflow("body", INLINE_BYTES)

OVERFLOW_FOLDER: Final = "sessions/"
"""The folder of the overflow bodies of all sessions."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its place in a session."""

    id: MessageId
    seq: int
    created_at: Timestamp
    message: Message


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The record of the call ``call_id``, without its arguments and its result, which are in the messages. ``rich`` are
    blocks for people. ``waiting`` are the approvals that the result mentions."""

    call_id: str
    name: str
    duration_ms: int
    rich: tuple[Json, ...] = ()
    waiting: tuple[ApprovalId, ...] = ()

    @classmethod
    def of(cls, tool: ToolOutcome) -> "ToolRun":
        return cls(tool.call.id, tool.call.name, tool.duration_ms, tool.rich, tool.waiting)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A finished turn: the user's message, the messages that follow it, and the usage.

    ``cost_usd`` is the cost of the request in US dollars, as exact decimal text. It is None in records that are not a turn of
    their own: imported messages, and the beginning of a successor.
    """

    id: str
    messages: tuple[StoredMessage, ...]
    usage: Annotated[TokenUsage, AsList()]
    turns: int
    finish_reason: FinishReason
    tools: tuple[Annotated[ToolRun, AsList(optional=2)], ...] = ()
    cost_usd: str | None = None

    @property
    def first_seq(self) -> int:
        return self.messages[0].seq

    @property
    def next_seq(self) -> int:
        return self.messages[-1].seq + 1

    @property
    def answer(self) -> StoredMessage:
        return self.messages[-1]


class _Arrival(NamedTuple):
    """The id and the time of a message that arrives now."""

    id: MessageId
    at: Timestamp


class TurnRecorder:
    """Collect a stream of events into a record. A message gets its time when it arrives. All messages get their numbers at
    the end, because a compaction during the turn moves it to the successor."""

    def __init__(self, turn_id: str, user_message: str, clock: Clock) -> None:
        self.outcome = Outcome()
        self._id = turn_id
        self._clock = clock
        self._input = Message(Role.USER, user_message)
        self._arrivals = [self._arrival()]

    def add(self, event: Event) -> None:
        index = self.outcome.add(event)
        if index is not None:
            self._arrivals.insert(index + 1, self._arrival())

    def record(self, first_seq: int, cost: Cost = NO_COST) -> TurnRecord:
        """Return the turn so far, with messages numbered from ``first_seq`` on, and the ``cost`` of its request."""
        outcome = self.outcome
        messages = tuple(
            StoredMessage(arrival.id, seq, arrival.at, message)
            for seq, (arrival, message) in enumerate(
                zip(self._arrivals, (self._input, *outcome.messages), strict=True), first_seq
            )
        )
        tools = tuple(map(ToolRun.of, outcome.tool_calls))
        return TurnRecord(self._id, messages, outcome.usage, outcome.turns, outcome.finish_reason, tools, decimal_text(cost.usd))

    def _arrival(self) -> _Arrival:
        return _Arrival(MessageId(new_id("msg")), timestamp(self._clock()))


async def store_body(store: TenantStore, session: SessionId, record: TurnRecord) -> dict[str, Value]:
    """Return the attributes of the turn's item. If the body is larger than ``INLINE_BYTES``, put it into the bucket under the
    turn's unique id. Nothing reads a body that is never committed; it is deleted with the session at the latest."""
    attributes: dict[str, Value] = {"id": record.id, "next_seq": record.next_seq}
    return attributes | await BODY.store(store, overflow_key(session, record.id), _encode(record))


async def load_turns(store: TenantStore, session: SessionId, from_seq: int, limit: int | None = None) -> list[TurnRecord]:
    """Return recorded turns in order, starting with the one whose first message is ``from_seq`` or later."""
    items = await store.table.query(
        keys.session_partition(store.tenant, session),
        prefix=keys.TURN_PREFIX,
        after=keys.session_turn(store.tenant, session, from_seq - 1).sk,
        limit=limit,
    )
    bodies = await BODY.load(store, items)
    return [_decode(str(item["id"]), body) for item, body in zip(items, bodies, strict=True)]


def overflow_key(session: SessionId, turn_id: str) -> str:
    return f"{session_overflow_prefix(session)}{turn_id}.json"


def session_overflow_prefix(session: SessionId) -> str:
    """Return the folder of all objects of one session."""
    return f"{OVERFLOW_FOLDER}{session}/"


def stored_overflow_key(item: Item) -> str | None:
    """Return the key of the turn's body in the bucket, or None if the item has the body."""
    return BODY.object_of(item)


def _encode(record: TurnRecord) -> bytes:
    others = encode_record(record, without=("id", "messages"), keep_none=True)
    return dump_bytes({"messages": [_encode_message(message) for message in record.messages], **others})


def _encode_message(stored: StoredMessage) -> dict[str, Json]:
    return {**message_json(stored), "data": True} if stored.message.data else message_json(stored)


def _decode(turn_id: str, body: str) -> TurnRecord:
    stored: dict[str, Any] = json.loads(body)
    messages = tuple(_decode_message(message) for message in stored["messages"])
    return decode(TurnRecord, stored, id=turn_id, messages=messages)


def message_json(stored: StoredMessage) -> dict[str, Json]:
    """Return the message as a client sees it. It is stored in the same form, with a mark if it is data."""
    message = stored.message
    return {
        "id": stored.id,
        "seq": stored.seq,
        "role": message.role.value,
        "content": message.content,
        "created_at": stored.created_at,
        "tool_calls": tool_calls_json(message.tool_calls),
        "tool_call_id": message.tool_call_id,
    }


def tool_calls_json(calls: Sequence[ToolCall]) -> list[Json]:
    """Return tool calls in OpenAI's form."""
    return [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]


def _decode_message(stored: Mapping[str, Any]) -> StoredMessage:
    calls = tuple(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in stored["tool_calls"])
    is_data = stored.get("data", False)
    message = Message(Role(stored["role"]), stored["content"], calls, stored["tool_call_id"], data=is_data)
    return StoredMessage(MessageId(stored["id"]), stored["seq"], Timestamp(stored["created_at"]), message)


async def with_decisions(store: TenantStore, user: UserId, turns: Sequence[TurnRecord], now: float) -> Sequence[TurnRecord]:
    """Return ``turns`` with the outcome of each approval that has ended by ``now`` in place of the result that mentions it. If no
    call waited, nothing is read."""
    ids = dict.fromkeys(approval for turn in turns for run in turn.tools for approval in run.waiting)
    if not ids:
        return turns
    from spass.approvals.record import decision_text
    from spass.approvals.store import read_approvals

    approvals = await read_approvals(store, user, [*ids])
    read = {approval: decision_text(approvals.get(approval), now) for approval in ids}
    outcomes = {approval: outcome for approval, outcome in read.items() if outcome is not None}
    return [_decide(turn, outcomes) for turn in turns]


def _decide(turn: TurnRecord, outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> TurnRecord:
    ended = {run.call_id: {name: outcomes[name] for name in run.waiting if name in outcomes} for run in turn.tools if run.waiting}
    messages = [
        replace(stored, message=_replace_result(stored.message, of_call))
        if (of_call := ended.get(stored.message.tool_call_id or ""))
        else stored
        for stored in turn.messages
    ]
    return replace(turn, messages=tuple(messages))


def _replace_result(message: Message, outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> Message:
    """Return the tool message with ``outcomes`` in its result."""
    result: dict[str, Any] = json.loads(message.content)
    own = outcomes.get(result.get("approval_id", ""))
    if own is not None:
        return replace(message, content=dump(own.get("result", own)))
    return replace(message, content=dump(_replace_mentions(result, outcomes)))


def _replace_mentions(result: Mapping[str, Any], outcomes: Mapping[ApprovalId, Mapping[str, Json]]) -> Json:
    """Return the result of a delegate with the outcomes of its calls among its ``approvals``. A result that was cut gets them."""
    entries: list[Mapping[str, Any]] = result.get("approvals", [])
    mentioned = [entry["approval_id"] for entry in entries]
    ended = {approval: {"approval_id": approval, **outcome} for approval, outcome in outcomes.items()}
    others = [entry for approval, entry in ended.items() if approval not in mentioned]
    return {**result, "approvals": [*(ended.get(entry["approval_id"], entry) for entry in entries), *others]}
