"""The scope of one piece of work: caller, store, deadline, cost."""

from dataclasses import dataclass, replace
from typing import Final, Self

from spass.aws.clients import TenantStore
from spass.core.cost import CostTally
from spass.core.ids import AgentName, RequestId, SessionId, UserId, new_id
from spass.core.time import Deadline
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.scalars import ANY_MODEL

REQUEST_SECONDS: Final = 270.0
"""The deadline of a request, including all retries and sub-calls."""

STREAM_SECONDS: Final = 840.0
"""The deadline of a request that is answered with a stream of events. Only the function's limit of 15 minutes ends a stream."""

REQUEST_MAX_WAIT: Final = 2.0
"""Seconds that a call waits for capacity in its tenant's limits. A waiting call occupies a function, and all tenants share
those."""

JOB_MAX_WAIT: Final = 70.0
"""Seconds that a call of a background job waits: long enough for a full minute of tokens to become free."""

MAX_CALLER_DEPTH: Final = 3
"""A request with this caller depth is refused. Each call that a request makes is one deeper than the request."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of one request or job.

    All its work shares ``tally`` and ``deadline``. ``depth`` is the number of gateway calls that led to it. ``parent`` is the
    call for which this work is done, or None if it is done for the request itself. ``max_wait`` is the number of seconds that one
    call may wait for capacity. With ``bypass_cache``, the tenant's settings are read from the table and not from the cache,
    because an admin may have changed them through another process a moment ago.
    """

    caller: Caller
    store: TenantStore
    deadline: Deadline
    tally: CostTally
    depth: int
    agent: AgentName | None = None
    session: SessionId | None = None
    parent: RequestId | None = None
    max_wait: float = REQUEST_MAX_WAIT
    bypass_cache: bool = False

    @classmethod
    def for_request(cls, caller: Caller, store: TenantStore, *, seconds: float = REQUEST_SECONDS) -> Self:
        """Return the scope of a request that has just arrived and must end within ``seconds``."""
        return cls(caller, store, Deadline.after(seconds), CostTally(), caller.depth, bypass_cache=caller.identity.admin)

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
    ) -> Self:
        """Return the scope of a job. ``request_id`` is the request that created the job, or None if a timer created it.

        ``route`` is the name of the job in the audit. ``token_id``, ``origin`` and ``depth`` are those of the request.
        """
        identity = Identity(store.tenant, token_id, admin=False, allowed_models=(ANY_MODEL,))
        caller = Caller(identity, user, request_id or RequestId(new_id("req")), origin, depth, route)
        return cls(caller, store, deadline, CostTally(), depth, max_wait=JOB_MAX_WAIT, bypass_cache=bypass_cache)

    @property
    def streaming(self) -> "Scope":
        """Return the same scope with the deadline of a stream of events."""
        return replace(self, deadline=Deadline(self.deadline.at + STREAM_SECONDS - REQUEST_SECONDS))

    @property
    def with_any_model(self) -> "Scope":
        """Return the same scope without the token's list of allowed models, for a model that the gateway chooses."""
        identity = replace(self.caller.identity, allowed_models=(ANY_MODEL,))
        return replace(self, caller=replace(self.caller, identity=identity))

    def for_call(self, call: RequestId) -> "Scope":
        """Return the scope of the work that is done for ``call``."""
        return replace(self, parent=call)

    def for_agent(self, agent: AgentName, session: SessionId | None = None) -> "Scope":
        """Return the scope of the work of ``agent``, in ``session`` if there is one."""
        return replace(self, agent=agent, session=session)
