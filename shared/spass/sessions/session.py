"""A session: its owner, its state and its hold. It is stored as one item, the head."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from spass.core.errors import InvalidRequest, SessionAgentMismatch, SessionNotFound
from spass.core.ids import CLIENT_ID, RAG_ID, AgentName, OperatorId, SessionId, SummaryId, UserId, WorkspaceId, id_pattern
from spass.core.messages import CHARACTERS_PER_TOKEN, Message
from spass.core.text_checks import reject_nul
from spass.core.time import Timestamp
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.tenant_store import TenantStore
from spass.store.writes import Condition, Delete, Equals, Item, Put, Value
from spass.tenancy.response_model import LEAVE_OUT_IF_EMPTY, Count, DateTime, ResponseModel, SessionIdText
from spass.tenancy.scalars import CompactStrategy, KeepLastN
from spass.tenancy.strict_body import StrictBody

_FULL_PERCENT: Final = 80
_ID_START: Final = "ses_"  # a client's name for a session does not begin so

WorkspaceIdField = Annotated[
    WorkspaceId, Field(pattern=RAG_ID, description="The workspace of the session. The default is the agent's.")
]
Title = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(reject_nul)]


class CreateSession(StrictBody):
    """The body of a request to create a session. Other values come from the tenant's settings and stay fixed."""

    title: Title | None = None
    compact_strategy: CompactStrategy | None = None
    compact_keep_last_n: KeepLastN | None = None
    compact_observation_mask: bool | None = None
    workspace: WorkspaceIdField | None = None


class CompactSession(StrictBody):
    """The body of a request to compact a session. It has no fields yet."""


class HoldKind(StrEnum):
    """The kind of work that holds a session."""

    TURN = "turn"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Hold:
    """The right to write to a session until ``expires_at`` (seconds since the epoch).

    ``owner`` is the id of the turn or job. ``key_hash`` and ``body_hash`` are the hashes of its idempotency key and its body.
    ``message_id`` names the stream of a streamed turn, together with ``agent`` if that is not the agent of the session.
    """

    owner: str
    kind: HoldKind
    expires_at: int
    key_hash: str | None = None
    body_hash: str | None = None
    message_id: str | None = None
    agent: AgentName | None = None

    def live(self, now: float) -> bool:
        return self.expires_at > now


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation of one user with one agent.

    Messages are numbered from 1 without gaps; ``next_seq`` is the number of the next one. Messages below
    ``compacted_before`` are compacted: the successor has only their summary. Only an archived session has any. Both counts are
    computed from these two numbers, so they cannot disagree with the history. ``workspace`` is the one whose files the agent
    reads and changes; a successor has the same.

    A successor begins with the message of the summary ``summary_id``. ``archived_by`` is the turn or job
    whose compaction made the successor. ``name`` is the client's own name for the session. The newest session of a chain has it.
    ``operator`` is the one whose session it is: all of its runs are turns of it, and no others. The agents of these may differ;
    ``agent`` is the one under which the session is filed.
    """

    id: SessionId
    agent: AgentName
    user: UserId
    title: str | None
    created_at: Timestamp
    updated_at: Timestamp
    compact_strategy: CompactStrategy
    compact_keep_last_n: int
    compact_observation_mask: bool
    next_seq: int = 1
    compacted_before: int = 1
    parent_session_id: SessionId | None = None
    successor_session_id: SessionId | None = None
    summary_id: SummaryId | None = None
    archived_at: Timestamp | None = None
    archived_by: str | None = None
    deleted_at: Timestamp | None = None
    hold: Hold | None = None
    name: str | None = None
    workspace: WorkspaceId | None = None
    operator: OperatorId | None = None

    @property
    def message_count(self) -> int:
        return self.next_seq - 1

    @property
    def live_message_count(self) -> int:
        return self.next_seq - self.compacted_before

    def should_compact(self, live: Sequence[Message], new_characters: int, context_window: int) -> bool:
        """Return whether to compact the session before a turn that starts with a message of ``new_characters``.

        That is the case if its strategy is ``auto``, it has more ``live`` messages than it keeps, and these and the new message
        fill more than 80 % of the model's ``context_window`` (tokens) by an estimate.
        """
        if self.compact_strategy != "auto" or len(live) <= self.compact_keep_last_n:
            return False
        characters = sum(message.count_characters() for message in live) + new_characters
        return 100 * characters > _FULL_PERCENT * CHARACTERS_PER_TOKEN * context_window

    def attributes(self) -> dict[str, Value]:
        """Return the attributes of the head item."""
        return encode(self)

    def entry(self) -> dict[str, Value]:
        """Return the attributes of the item in its user's list. It has all fields of a list, so that a page costs one query."""
        return encode(replace(self, hold=None))


class ActiveTurn(ResponseModel):
    """The stream of the turn that runs in a session. Follow or stop it under `/c1/agents/{name}/chat/{message_id}`. `agent` is
    the name there, if it is not that of the session's agent."""

    message_id: str
    agent: Annotated[AgentName | None, LEAVE_OUT_IF_EMPTY] = None


class SessionView(ResponseModel):
    """A session as a client sees it. `active_turn` is the turn that runs in the session, if it is a stream with a `message_id`.
    It is always null in a list of sessions; read the session to see it."""

    id: SessionIdText
    agent: AgentName
    title: str | None
    created_at: DateTime
    updated_at: DateTime
    message_count: Count
    live_message_count: Count
    compact_strategy: CompactStrategy
    compact_keep_last_n: Count
    compact_observation_mask: bool
    parent_session_id: SessionIdText | None
    successor_session_id: SessionIdText | None
    archived_at: DateTime | None
    workspace: WorkspaceId | None
    active_turn: ActiveTurn | None = None

    @classmethod
    def of(cls, session: Session, now: float | None = None) -> "SessionView":
        """Return the view of ``session``. Only with ``now`` (seconds since the epoch) does it show the active turn."""
        view = cls.model_validate(session, from_attributes=True)
        hold = session.hold
        if now is None or hold is None or hold.message_id is None or not hold.live(now):
            return view
        agent = hold.agent if hold.agent != session.agent else None
        return view.model_copy(update={"active_turn": ActiveTurn(message_id=hold.message_id, agent=agent)})


class Successor(ResponseModel):
    """The successor of an archived session."""

    successor_session_id: SessionIdText


def decode_session(item: Item) -> Session:
    """Return the session in a head or in an entry of a list."""
    return decode(Session, item)


def decode_owned_session(item: Item | None, agent: AgentName | None, user: UserId) -> Session:
    """Return the session in a head if it belongs to ``user`` and ``agent``. None stands for any agent.

    Raises:
        SessionNotFound: it does not exist, is deleted, or belongs to another user. The error does not tell which.
        SessionAgentMismatch: it belongs to the user, but to another agent.
    """
    session = decode_session(item) if item is not None else None
    if session is None or session.deleted_at is not None or session.user != user:
        raise SessionNotFound("You have no such session.")
    if agent not in (None, session.agent):
        raise SessionAgentMismatch(f"This session was created for the agent {session.agent}.", details={"agent": session.agent})
    return session


async def read_session(store: TenantStore, session: SessionId, agent: AgentName | None, user: UserId) -> Session:
    """Read the session's head. Errors are those of ``decode_owned_session``."""
    return decode_owned_session(await store.table.get(keys.session_head(store.tenant, session)), agent, user)


def parse_session_id(wanted: str) -> SessionId | None:
    """Return the id of a session, or None if ``wanted`` is a client's name.

    Raises:
        SessionNotFound: it begins like an id, but is none.
        InvalidRequest: it is neither an id nor a name.
    """
    if wanted.startswith(_ID_START):
        if re.fullmatch(id_pattern("ses"), wanted):
            return SessionId(wanted)
        raise SessionNotFound("You have no such session.")
    if not re.fullmatch(CLIENT_ID, wanted):
        raise InvalidRequest("'session_id' has 1 to 128 of the characters A-Z a-z 0-9 . _ : -", param="session_id")
    return None


def name_write(store: TenantStore, session: Session, name: str, when: Condition | None = None) -> Put:
    """Return the write that gives ``name`` to ``session``."""
    return Put(keys.session_name(store.tenant, session.user, session.agent, name), {"session": session.id}, when)


def name_removal(store: TenantStore, session: Session, name: str) -> Delete:
    """Return the write that removes ``name``. Its condition fails if another session has the name."""
    return Delete(keys.session_name(store.tenant, session.user, session.agent, name), Equals("session", session.id))


class ChainEnd(NamedTuple):
    """The newest session of a chain. ``head`` is None if the session is deleted without a trace."""

    id: SessionId
    head: Session | None


async def read_chain_end(store: TenantStore, session: SessionId) -> ChainEnd:
    """Return the newest session of the chain that continues with ``session``. A deleted member between two others keeps its
    links."""
    while True:
        item = await store.table.get(keys.session_head(store.tenant, session))
        head = decode_session(item) if item is not None else None
        if head is None or head.successor_session_id is None:
            return ChainEnd(session, head)
        session = head.successor_session_id
