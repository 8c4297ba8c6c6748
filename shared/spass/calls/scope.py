"""Where a piece of work stands: for whom, in whose store, until when, at whose cost."""

from dataclasses import dataclass, replace
from typing import Final, Self

from spass.aws.clients import TenantStore
from spass.core.cost import CostTally
from spass.core.ids import AgentName, RequestId, SessionId, UserId, new_id
from spass.core.time import Deadline
from spass.tenancy.identity import Caller, Identity
from spass.tenancy.scalars import ANY_MODEL

REQUEST_SECONDS: Final = 270.0
"""The one deadline of a request, all retries and sub-calls included."""

STREAM_SECONDS: Final = 840.0
"""The same of a request that is answered with a stream of events: no idle limit cuts it, only the function's fifteen minutes."""

REQUEST_MAX_WAIT: Final = 2.0
"""Seconds that a call waits for room in its tenant's limits: one that waits holds a function, and those are everybody's."""

JOB_MAX_WAIT: Final = 70.0
"""The same of work that nobody waits for: a whole minute's tokens pass meanwhile."""

MAX_CALLER_DEPTH: Final = 3
"""A request that arrives this deep is refused; whatever it calls stands one deeper than it does."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One request's surroundings, handed down to whatever works for it.

    ``tally`` and ``deadline`` are shared by everything the request does. ``depth`` is how many calls of gateways led here.
    ``parent`` is the call that this work is done for; None if it is the request itself. ``patience`` is how many seconds
    one of its calls may wait for room. ``fresh``: it reads its tenant's settings as of now, not of half a minute ago. An admin
    may just have changed them through another process, also one whose request a job is done for.
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
    fresh: bool = False

    @classmethod
    def of(cls, caller: Caller, store: TenantStore, *, seconds: float = REQUEST_SECONDS) -> Self:
        """The scope of a request that has just come in and has ``seconds`` to end."""
        return cls(caller, store, Deadline.after(seconds), CostTally(), caller.depth, fresh=caller.identity.admin)

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
        fresh: bool = False,
    ) -> Self:
        """The scope of work that goes on after the request ``request_id``, by which it was allowed, or of nobody's request.
        ``route`` names the work in the audit; ``token_id``, ``origin`` and ``depth`` are the request's."""
        identity = Identity(store.tenant, token_id, admin=False, allowed_models=(ANY_MODEL,))
        caller = Caller(identity, user, request_id or RequestId(new_id("req")), origin, depth, route)
        return cls(caller, store, deadline, CostTally(), depth, max_wait=JOB_MAX_WAIT, fresh=fresh)

    @property
    def streaming(self) -> "Scope":
        """The same work, answered with a stream of events."""
        return replace(self, deadline=Deadline(self.deadline.at + STREAM_SECONDS - REQUEST_SECONDS))

    @property
    def with_any_model(self) -> "Scope":
        """The same work where the gateway itself picks the model: a token's allow-list says what its bearer may pick."""
        identity = replace(self.caller.identity, allowed_models=(ANY_MODEL,))
        return replace(self, caller=replace(self.caller, identity=identity))

    def for_call(self, call: RequestId) -> "Scope":
        """What is done for ``call``, which is itself done for the request."""
        return replace(self, parent=call)

    def for_agent(self, agent: AgentName, session: SessionId | None = None) -> "Scope":
        """The same work, done by ``agent``, in ``session`` if there is one."""
        return replace(self, agent=agent, session=session)
