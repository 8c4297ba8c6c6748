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
"""The deadline of a request that is answered with a stream of events: no idle limit ends it, only the function's 15 minutes."""

REQUEST_MAX_WAIT: Final = 2.0
"""Seconds that a call waits for capacity in its tenant's limits. A waiting call holds a function, and all tenants share those."""

JOB_MAX_WAIT: Final = 70.0
"""Seconds that a call of a background job waits: long enough for a full minute of tokens to become free."""

MAX_CALLER_DEPTH: Final = 3
"""A request with this caller depth is refused. Everything that a request calls is one deeper than the request."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of one request, passed to everything that works for it.

    ``tally`` and ``deadline`` are shared by everything that the request does. ``depth`` is the number of gateway calls that led
    to it. ``parent`` is the call that this work is done for; None if it is the request itself. ``max_wait`` is the number of
    seconds that one call may wait for capacity. ``bypass_cache``: read the tenant's settings from the table and not from the
    cache, because an admin, or the admin whose request created a job, may just have changed them through another process.
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
        """Return the scope of work that continues after the request ``request_id``, or that no request created (None).

        ``route`` names the work in the audit; ``token_id``, ``origin`` and ``depth`` are the request's.
        """
        identity = Identity(store.tenant, token_id, admin=False, allowed_models=(ANY_MODEL,))
        caller = Caller(identity, user, request_id or RequestId(new_id("req")), origin, depth, route)
        return cls(caller, store, deadline, CostTally(), depth, max_wait=JOB_MAX_WAIT, bypass_cache=bypass_cache)

    @property
    def streaming(self) -> "Scope":
        """Return the scope of the same work, answered with a stream of events."""
        return replace(self, deadline=Deadline(self.deadline.at + STREAM_SECONDS - REQUEST_SECONDS))

    @property
    def with_any_model(self) -> "Scope":
        """Return the same work for a model that the gateway chooses: an allow-list limits only the bearer's choice."""
        identity = replace(self.caller.identity, allowed_models=(ANY_MODEL,))
        return replace(self, caller=replace(self.caller, identity=identity))

    def for_call(self, call: RequestId) -> "Scope":
        """Return the scope of work done for ``call``, which is itself done for the request."""
        return replace(self, parent=call)

    def for_agent(self, agent: AgentName, session: SessionId | None = None) -> "Scope":
        """Return the scope of the same work, done by ``agent``, in ``session`` if there is one."""
        return replace(self, agent=agent, session=session)
