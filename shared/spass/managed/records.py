"""The records of managed agents: agents, messages and runs, and how the table stores them.

An agent's item has its configuration, which only its owner changes (``version`` counts the changes), and the state of its work:
``next_seq`` numbers the next message, ``active_run`` is the run that has begun and not ended, ``error`` that of the last run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from spass.core.codec import AsJson
from spass.core.errors import AgentNotFound, AgentPaused, RunNotFound, SessionBusy
from spass.core.ids import AgentName, ManagedAgentId, MessageId, Operator, OperatorId, RunId, UserId
from spass.core.json import dump
from spass.core.messages import Json, TokenUsage
from spass.core.time import Timestamp
from spass.store import keys
from spass.store.codec import decode
from spass.store.leases import RETRY_SECONDS
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, OneOf

MAX_ATTEMPTS: Final = 3
"""Times that a queued run is begun, and that the sweep sends it again after its worker died."""


class AgentStatus(StrEnum):
    """The status of an agent. ``error``: its last run failed."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    ERROR = "error"


class Direction(StrEnum):
    """The direction of a message."""

    USER_TO_AGENT = "user_to_agent"
    AGENT_TO_USER = "agent_to_user"


class MessageStatus(StrEnum):
    """The status of a message. An answer is delivered from the beginning."""

    PENDING = "pending"
    DELIVERED = "delivered"


class RunTrigger(StrEnum):
    """The reason for a run: a streamed message, ``POST …/run``, or the schedule."""

    MESSAGE = "message"
    RUN = "run"
    SCHEDULE = "schedule"


class RunStatus(StrEnum):
    """The status of a run. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return self not in (RunStatus.QUEUED, RunStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of an agent's scheduled runs, as an expression of EventBridge Scheduler, and the ``input`` of these runs."""

    expression: str
    timezone: str = "UTC"
    input: str | None = None
    enabled: bool = True

    @property
    def is_once(self) -> bool:
        """Return True for a schedule with one tick."""
        return self.expression.startswith("at(")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedAgent:
    """An agent with a mailbox. ``agent`` is a kind or the name of an agent's file, and the five fields after it are those of a
    question to it (``AgentChoice``). ``token_id`` is the token of the request that last wrote what a run uses, ``depth`` the
    number of gateway calls that led to it, and ``traceparent`` its trace, if it has one. The sessions are filed under
    ``session_agent``.

    ``pending`` counts the pending messages, whose numbers are above ``delivered_seq``. ``ticked_at`` is when its schedule last
    started a run. An agent with ``deleted_at`` is being deleted.
    """

    id: ManagedAgentId
    name: str
    agent: str
    owner: UserId
    token_id: str
    depth: int = 0
    traceparent: str | None = None
    session_agent: AgentName | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    system_prompt: str | None = None
    params: Annotated[Mapping[str, Json] | None, AsJson()] = None
    schedule: Schedule | None = None
    next_seq: int = 1
    delivered_seq: int = 0
    pending: int = 0
    paused: bool = False
    error: Annotated[Mapping[str, Json] | None, AsJson()] = None
    active_run: RunId | None = None
    ticked_at: Timestamp | None = None
    version: int = 1
    created_at: Timestamp
    updated_at: Timestamp
    deleted_at: Timestamp | None = None

    @property
    def status(self) -> AgentStatus:
        if self.active_run is not None:
            return AgentStatus.RUNNING
        if self.paused:
            return AgentStatus.PAUSED
        return AgentStatus.ERROR if self.error is not None else AgentStatus.IDLE

    @property
    def operator(self) -> Operator:
        """Return the operator whose session, state and notes are those of this agent."""
        return Operator(self.owner, OperatorId(self.id))

    @property
    def stream_agent(self) -> AgentName:
        """Return what replaces the agent's name in the names of its streams."""
        return AgentName(self.id)


@dataclass(frozen=True, slots=True)
class MailboxMessage:
    """A message of a mailbox, numbered from 1. ``run_id`` is the run that read it, or whose answer it is."""

    id: MessageId
    seq: int
    direction: Direction
    content: str
    status: MessageStatus
    run_id: RunId | None
    created_at: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the agent ``agent_id``, which acts as the token ``token_id``. Its input is that of the mailbox, then ``input``.
    ``depth`` gateway calls led to the request for it: otherwise agents that call each other through it would never stop.

    ``scheduled_for`` is the time of a tick. ``attempts`` counts the times that it was begun, the last at ``begun_at`` by the
    worker ``begun_by``. A rate limit has put it back ``put_backs`` times, and its message is delivered at ``due_at``. ``sends``
    counts the times that the sweep sent it again after its worker died. ``turns``, ``usage`` and ``cost_usd`` (US dollars) are
    those of its turn. ``error`` has ``code`` and ``message``. ``request_hash`` is the SHA-256 of the request's body if the run's
    id is derived from an Idempotency-Key.
    """

    id: RunId
    agent_id: ManagedAgentId
    trigger: RunTrigger
    status: RunStatus
    token_id: str
    depth: int = 0
    input: str | None = None
    scheduled_for: Timestamp | None = None
    turns: int = 0
    usage: TokenUsage | None = None
    cost_usd: str | None = None
    error: Annotated[Mapping[str, Json] | None, AsJson()] = None
    attempts: int = 0
    begun_at: Timestamp | None = None
    begun_by: str | None = None
    due_at: Timestamp | None = None
    put_backs: int = 0
    sends: int = 0
    created_at: Timestamp
    finished_at: Timestamp | None = None
    request_hash: str | None = None


def encode_error(error: Mapping[str, Json]) -> str:
    """Return ``code`` and ``message`` of an error as runs and agents store them."""
    return dump({name: error[name] for name in ("code", "message")})


IS_OPEN: Final = OneOf("status", [RunStatus.QUEUED.value, RunStatus.RUNNING.value])
"""The condition on a run's item that the run has not ended."""
NO_AGENT: Final = "You have no such managed agent. It belongs to the user of SPASS-User-Id, or without that header to the token."
"""The message about an agent that does not exist or belongs to another owner: both read the same."""
NO_RUN: Final = "This agent has no such run. GET /v1/managed-agents/{agent_id}/runs lists its runs."


async def find_agent(store: TenantStore, agent: ManagedAgentId) -> ManagedAgent | None:
    """Return the agent, also while it is being deleted, or None. This does not check the owner: it is for jobs."""
    item = await store.table.get(keys.managed_agent(store.tenant, agent))
    return decode(ManagedAgent, item) if item is not None else None


async def read_agent(store: TenantStore, owner: UserId, agent: ManagedAgentId) -> ManagedAgent:
    """Return an agent of ``owner``.

    Raises:
        AgentNotFound: the owner has no such agent, or it was deleted.
    """
    found = await find_agent(store, agent)
    if found is None or found.owner != owner or found.deleted_at is not None:
        raise agent_not_found()
    return found


def current_agent(item: Item | None) -> ManagedAgent:
    """Return the agent in its newest item, for a writer whose condition failed.

    Raises:
        AgentNotFound: it was deleted.
    """
    if item is None or "deleted_at" in item:
        raise agent_not_found()
    return decode(ManagedAgent, item)


def check_not_paused(agent: ManagedAgent) -> None:
    """Check that the agent takes messages and runs.

    Raises:
        AgentPaused: it is paused.
    """
    if agent.paused:
        raise AgentPaused('This agent is paused. PATCH it with {"paused": false} to continue it.')


def run_key(store: TenantStore, run: Run) -> keys.Key:
    return keys.managed_run(store.tenant, run.agent_id, run.id)


def run_active(agent: ManagedAgent) -> SessionBusy:
    """Return the error of a request that an active run of ``agent`` rules out."""
    return SessionBusy(
        f"The run {agent.active_run} of this agent is active; try again when it has ended, or follow or stop it.",
        details={"run_id": agent.active_run},
        retry_after=RETRY_SECONDS,
    )


def agent_not_found() -> AgentNotFound:
    return AgentNotFound(NO_AGENT)


def run_not_found() -> RunNotFound:
    return RunNotFound(NO_RUN)
