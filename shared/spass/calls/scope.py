"""The scope of one piece of work: caller, store, deadline, cost."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypedDict

from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.cost import CostTally
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId, WorkspaceId, new_id
from spass.core.time import Deadline, Timestamp, now
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.scalars import ANY_MODEL

if TYPE_CHECKING:
    from spass.core.events import Nested

REQUEST_SECONDS: Final = 270.0
"""The deadline of a request, including all retries and sub-calls."""

STREAM_SECONDS: Final = 840.0
"""The deadline of a request that is answered with a stream of events. Only the function's limit of 15 minutes ends a stream."""

CUT_SECONDS: Final = 10.0
"""Seconds in which a turn that is cut at its deadline closes its calls. Their own deadline is that much later: otherwise a call
could fail at the same moment, and the turn would fail instead of being kept."""

REQUEST_MAX_WAIT: Final = 2.0
"""Seconds that a call waits for capacity in its tenant's limits. A waiting call occupies a function, and all tenants share
those."""

JOB_MAX_WAIT: Final = 70.0
"""Seconds that a call of a job waits if the job would lose its earlier calls: long enough for a full minute of tokens to become
free."""

MAX_CALLER_DEPTH: Final = 3
"""A request with this caller depth is refused. Each call that a request makes is one deeper than the request."""


class EventFields(TypedDict):
    """The fields that all events of the bus have (``BusEvent``)."""

    at: Timestamp
    tenant: TenantId
    request_id: RequestId
    parent_request_id: RequestId
    agent: AgentName | None
    kind: str | None
    session_id: SessionId | None


@dataclass(slots=True)
class CurrentSession:
    """The session of some work. A turn that compacts its session sets ``id`` to the id of the successor.

    The turn sets the rest when it holds the session: its own id, the name of its stream, the session's workspace, and the agent
    that runs. The session of an operator may be filed under another agent.
    """

    id: SessionId
    turn_id: str | None = None
    message_id: str | None = None
    workspace: WorkspaceId | None = None
    agent: AgentName | None = None


@dataclass(slots=True)
class Delegations:
    """The number of delegates of one request so far, including delegates of delegates."""

    count: int = 0

    def begin(self, limit: int) -> bool:
        """Count one more. Return False if there have been ``limit`` already."""
        self.count = min(self.count + 1, limit + 1)
        return self.count <= limit


ReportProgress: TypeAlias = Callable[[str], None]
ForwardEvent: TypeAlias = Callable[["Nested"], None]


@dataclass(frozen=True, slots=True)
class CallReports:
    """What the call ``call_id``, which is a model's id, tells the client while it runs: one line about its ``progress``, and the
    events of work within it. Call both in the event loop. By default, no client follows the call."""

    call_id: str = ""
    progress: ReportProgress = lambda _: None
    forward: ForwardEvent = lambda _: None


NO_REPORTS: Final = CallReports()


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of one request or job.

    All its work shares ``tally``, ``deadline``, ``current_session`` and ``delegations``. ``depth`` is the number of gateway calls
    that led to it. ``parent`` is the call for which this work is done, or None if it is done for the request itself. ``max_wait``
    is the number of seconds that one call may wait for capacity. ``can_be_put_back``: the work may begin anew later, until it has
    acted (``CostTally``). With ``bypass_cache``, the tenant's settings are read from the table and not from the cache, because an
    admin may have changed them through another process a moment ago. ``kind`` is the key of the agent's kind. ``bus`` gets the
    events of the calls. ``sleep`` waits (seconds) for capacity before the first model call, and ends the work if nobody waits for
    its answer any more; None always sleeps. ``reports`` are the reports of the tool call for which the work is done.
    """

    caller: Caller
    store: TenantStore
    deadline: Deadline
    tally: CostTally
    depth: int
    agent: AgentName | None = None
    current_session: CurrentSession | None = None
    parent: RequestId | None = None
    max_wait: float = REQUEST_MAX_WAIT
    can_be_put_back: bool = False
    bypass_cache: bool = False
    kind: str | None = None
    bus: EventBus = EMPTY_BUS
    delegations: Delegations = field(default_factory=Delegations)
    sleep: Callable[[float], Awaitable[None]] | None = None
    reports: CallReports = NO_REPORTS

    @classmethod
    def for_request(
        cls, caller: Caller, store: TenantStore, *, seconds: float = REQUEST_SECONDS, bus: EventBus = EMPTY_BUS
    ) -> Self:
        """Return the scope of a request that has just arrived and must end within ``seconds``."""
        bypass_cache = caller.identity.admin
        return cls(caller, store, Deadline.after(seconds), CostTally(), caller.depth, bypass_cache=bypass_cache, bus=bus)

    @classmethod
    def for_job(
        cls,
        store: TenantStore,
        deadline: Deadline,
        *,
        route: str,
        user: UserId | None = None,
        request_id: RequestId | None = None,
        token_id: str = "",
        origin: RequestId | None = None,
        depth: int = 0,
        bypass_cache: bool = False,
        bus: EventBus = EMPTY_BUS,
    ) -> Self:
        """Return the scope of a job, which waits for capacity no longer than a request.

        ``request_id`` is the request that created the job, or None if a timer created it. ``route`` is the name of the job in the
        audit. ``token_id``, ``origin`` and ``depth`` come from the request.
        """
        identity = Identity(store.tenant, token_id, admin=False, allowed_models=(ANY_MODEL,))
        caller = Caller(identity, user, request_id or RequestId(new_id("req")), origin, depth, route)
        return cls(caller, store, deadline, CostTally(), depth, bypass_cache=bypass_cache, bus=bus)

    @property
    def seconds_to_wait(self) -> float:
        """Return the seconds that the next call may wait for capacity. Work that can be put back waits no longer than a request
        until it has acted: it leaves its worker to others."""
        may_leave = self.can_be_put_back and not self.tally.has_acted
        return min(REQUEST_MAX_WAIT if may_leave else self.max_wait, self.deadline.remaining())

    @property
    def session(self) -> SessionId | None:
        return self.current_session.id if self.current_session is not None else None

    @property
    def run_id(self) -> str:
        """Return the id of the turn, or of the request if the work has no session."""
        turn_id = self.current_session.turn_id if self.current_session is not None else None
        return turn_id or self.caller.request_id

    @property
    def streaming(self) -> "Scope":
        return replace(self, deadline=Deadline(self.deadline.at + STREAM_SECONDS - REQUEST_SECONDS))

    @property
    def with_time_for_cut(self) -> "Scope":
        """Return the scope for the calls of a turn that is cut at the deadline of this scope."""
        return replace(self, deadline=Deadline(self.deadline.at + CUT_SECONDS))

    @property
    def as_owner(self) -> "Scope":
        return replace(self, caller=replace(self.caller, user=self.caller.owner))

    @property
    def with_any_model(self) -> "Scope":
        """Return the same scope without the token's list of allowed models, for a model that the gateway chooses."""
        identity = replace(self.caller.identity, allowed_models=(ANY_MODEL,))
        return replace(self, caller=replace(self.caller, identity=identity))

    @property
    def first_sleep(self) -> Callable[[float], Awaitable[None]] | None:
        """Return ``sleep``, until the request has called a chat model or a tool."""
        return None if self.tally.has_acted else self.sleep

    def for_call(self, call: RequestId, reports: CallReports = NO_REPORTS) -> "Scope":
        return replace(self, parent=call, reports=reports)

    def nested(self) -> "Scope":
        """Return the scope of an agent that works for the call of this scope: one level deeper, with a part of its tally.
        A model has made that call, so it does not end with the client."""
        return replace(self, depth=self.depth + 1, tally=self.tally.part(), sleep=None)

    def for_agent(self, agent: AgentName, session: SessionId | None = None, *, kind: str | None = None) -> "Scope":
        """Return the scope of the work of ``agent``, in ``session`` if there is one. ``kind`` is the key of its kind."""
        return replace(self, agent=agent, current_session=CurrentSession(session) if session is not None else None, kind=kind)

    def continue_in(self, successor: SessionId) -> None:
        if self.current_session is not None:
            self.current_session.id = successor

    @property
    def parent_request_id(self) -> RequestId:
        """Return the call for which this work is done, or the request."""
        return self.parent or self.caller.request_id

    def event_fields(self) -> EventFields:
        return {
            "at": now(),
            "tenant": self.store.tenant,
            "request_id": self.caller.request_id,
            "parent_request_id": self.parent_request_id,
            "agent": self.agent,
            "kind": self.kind,
            "session_id": self.session,
        }
