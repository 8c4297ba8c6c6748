"""Sessions with a history, written to the table as turns and compactions write them, but without model calls."""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import boto3

from bench.processes import USER
from spass.aws.clients import Aws
from spass.aws.dynamodb import attribute_of
from spass.core.ids import AgentName, MessageId, SessionId, TenantId, UserId, new_id
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Timestamp, timestamp
from spass.sessions.compaction.commit import commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary, first_kept_seq
from spass.sessions.hold import acquire_hold
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Hold, HoldKind, Session
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Value
from spass.tenancy.scalars import CompactStrategy

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import WriteRequestTypeDef

AGENT: Final = AgentName("bench")
KEPT: Final = 2  # messages: the last turn
QUESTION: Final = "What did we say about the garden fence, and who wanted to paint it green before the summer comes?"
ANSWER: Final = "Ada wanted the fence green, Carl had nothing against it, and the paint was to cost 80 euros in May. " * 4
SUMMARY: Final = Summary("The fence is to be green: Ada wants it, Carl agrees, the paint costs 80 euros. " * 6, "bench-model")
_AT_ONCE: Final = 25  # DynamoDB's limit of a batch
_HELD_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """The history of a session: ``live`` turns, and before them compactions of ``behind`` turns each."""

    name: str
    live: int = 1
    generations: int = 0
    behind: int = 0
    agent: AgentName = AGENT
    strategy: CompactStrategy = "manual"

    @property
    def compacted(self) -> int:
        """Return the number of turns that are only in a summary."""
        return self.generations * self.behind


class SessionWriter:
    """Creates sessions of the tenant ``bench`` in the table that the environment names."""

    def __init__(self) -> None:
        self._table = "spass"
        self.store: Final[TenantStore] = Aws(table=self._table, bucket="spass").for_tenant(TenantId("bench"))
        self._client: DynamoDBClient = boto3.client("dynamodb")

    async def session(self, past: HistoryShape) -> SessionId:
        """Create a session with this history. Return the last session of the chain."""
        session = self._new_session(past)
        for generation in range(past.generations):
            # One turn more the first time: each compaction keeps the last turn, which the next one compacts.
            grown = await self._with_turns(session, past.behind + (generation == 0))
            session = await self._compacted(grown)
        kept = 1 if past.generations else 0
        return (await self._with_turns(session, past.live - kept)).id

    def _new_session(self, past: HistoryShape) -> Session:
        at = timestamp(time.time())
        session_id = SessionId(new_id("ses"))
        user = UserId(USER)
        return Session(session_id, past.agent, user, None, at, at, past.strategy, KEPT, compact_observation_mask=True)

    async def _with_turns(self, session: Session, turns: int) -> Session:
        """The session after so many further turns, its head included."""
        tenant, after = self.store.tenant, replace(session, next_seq=session.next_seq + 2 * turns)
        items: list[tuple[keys.Key, Mapping[str, Value]]] = [(keys.session_head(tenant, session.id), after.attributes())]
        for first_seq in range(session.next_seq, after.next_seq, 2):
            body = await store_body(self.store, session.id, _turn(first_seq, session.created_at))
            items.append((keys.session_turn(tenant, session.id, first_seq), body))
        self._put(items)
        return after

    def _put(self, items: Sequence[tuple[keys.Key, Mapping[str, Value]]]) -> None:
        for start in range(0, len(items), _AT_ONCE):
            batch: list[WriteRequestTypeDef] = [
                {"PutRequest": {"Item": {name: attribute_of(value) for name, value in {**attributes, **key._asdict()}.items()}}}
                for key, attributes in items[start : start + _AT_ONCE]
            ]
            left = self._client.batch_write_item(RequestItems={self._table: batch})["UnprocessedItems"]
            if left:
                raise SystemExit("the emulator did not take all items of a batch")

    async def _compacted(self, session: Session) -> Session:
        """Create the successor as a compaction job does."""
        now, owner = time.time(), new_id("job")
        hold = Hold(owner, HoldKind.JOB, int(now) + _HELD_SECONDS)
        source = await acquire_hold(self.store, session.id, session.agent, session.user, hold, now)
        live = await load_turns(self.store, source.id, source.compacted_before)
        messages = list(itertools.chain.from_iterable(turn.messages for turn in live))
        cut = first_kept_seq(messages, KEPT, starts_with_summary=source.parent_session_id is not None)
        plan = CompactionPlan.new(source.id, cut)
        return (await commit_compaction(self.store, source, live, plan, SUMMARY, owner=owner, at=now)).session


def _turn(first_seq: int, at: Timestamp) -> TurnRecord:
    said: Iterable[Message] = (Message(Role.USER, QUESTION), Message(Role.ASSISTANT, ANSWER))
    messages = tuple(StoredMessage(MessageId(new_id("msg")), seq, at, message) for seq, message in enumerate(said, first_seq))
    return TurnRecord(new_id("turn"), messages, TokenUsage(900, 90), 1, FinishReason.STOP)
