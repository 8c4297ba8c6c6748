"""A compaction that was asked for, as its record holds it: ids, numbers and times, and never what was said."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal, Self, cast

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.idempotency import IdempotentRequest
from spass.aws.table import TTL
from spass.aws.writes import OneOf, Update
from spass.core import errors
from spass.core.cost import NO_COST, Cost, CostSource
from spass.core.errors import SpassError, SummaryFailed
from spass.core.ids import AgentName, JobId, RequestId, SessionId, SummaryId, UserId
from spass.core.messages import Json
from spass.core.time import Timestamp, epoch_s
from spass.metering.pricing import decimal_text
from spass.redaction.text import redact_provider_text
from spass.sessions.compaction.types import CompactionPlan
from spass.tenancy.strict_body import StrictBody

JOB_KIND: Final[Literal["compaction"]] = "compaction"
JOB_SECONDS: Final = 3600
"""How long a job may take. One that has not ended by then never will."""
JOB_TTL_SECONDS: Final = 30 * 24 * 3600

_STORED_DETAILS: Final = ("reason", "successor_session_id")


class CompactSession(StrictBody):
    """What a client may say when it has a session compacted: nothing, as yet."""


class JobStatus(StrEnum):
    """How far a job has come."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Requester:
    """The request that asked for a job: with which token, where in a tree of calls, for the audit of what is done for it, and
    its Idempotency-Key, if it had one."""

    request_id: RequestId
    token_id: str
    origin: RequestId | None
    depth: int
    route: str
    key_hash: str | None = None
    body_hash: str | None = None


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed. ``retry_after`` is in seconds."""

    code: str
    message: str
    retry_after: int | None = None
    details: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, error: SpassError) -> Self:
        after = error.retry_after
        details = {name: value for name, value in error.details.items() if name in _STORED_DETAILS}
        return cls(error.code, redact_provider_text(error.message), None if after is None else max(1, math.ceil(after)), details)

    def error(self, job: JobId) -> SpassError:
        """The same as an error that can be raised."""
        kind = _ERRORS.get(self.code, SummaryFailed)
        return kind(self.message, details={**self.details, "job_id": job}, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Job:
    """The compaction of ``plan.source``, a session of ``user`` with ``agent``.

    ``otherwise`` is the model that summarises if the tenant has set none; None if the requester's token may not use it. The
    job never
    lives past second ``ends_at``. What it ``cost`` is known when it has ended, as are the numbers of messages that were
    ``compacted`` and ``kept``, and the ``model`` that summarised.
    """

    id: JobId
    status: JobStatus
    user: UserId
    agent: AgentName
    plan: CompactionPlan
    otherwise: str | None
    requester: Requester
    created_at: Timestamp
    ends_at: int
    finished_at: Timestamp | None = None
    compacted: int = 0
    kept: int = 0
    model: str | None = None
    cost: Cost = NO_COST
    failure: JobFailure | None = None

    @property
    def ended(self) -> bool:
        return self.status in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    def is_requested_by(self, request: IdempotentRequest | None) -> bool:
        """Whether a request with the same Idempotency-Key asked for it.

        Raises:
            IdempotencyKeyReused: so it was, with another body.
        """
        if request is None or self.requester.key_hash != request.digest:
            return False
        if self.requester.body_hash != request.body_hash:
            raise errors.IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
        return True

    def attributes(self) -> dict[str, Value]:
        """The item. What is None is absent."""
        plan, requester = self.plan, self.requester
        every: dict[str, Value] = {
            "id": self.id,
            "kind": JOB_KIND,
            "status": self.status.value,
            "user": self.user,
            "agent": self.agent,
            "source": plan.source,
            "successor": plan.successor,
            "summary": plan.summary,
            "kept_from": plan.kept_from,
            "otherwise": self.otherwise,
            "request_id": requester.request_id,
            "token_id": requester.token_id,
            "origin_request_id": requester.origin,
            "depth": requester.depth,
            "route": requester.route,
            "key_hash": requester.key_hash,
            "body_hash": requester.body_hash,
            "created_at": self.created_at,
            "ends_at": self.ends_at,
            "finished_at": self.finished_at,
            "compacted": self.compacted,
            "kept": self.kept,
            "model": self.model,
            **_cost_attributes(self.cost),
            TTL: epoch_s(self.created_at) + JOB_TTL_SECONDS,
        }
        if self.failure is not None:
            every["failure"] = asdict(self.failure)
        return {name: value for name, value in every.items() if value is not None}


def decode_job(item: Item) -> Job:
    """The job that an item holds."""
    stored = cast("Mapping[str, Any]", item)  # written by ``attributes``
    failure = stored.get("failure")
    return Job(
        JobId(stored["id"]),
        JobStatus(stored["status"]),
        UserId(stored["user"]),
        AgentName(stored["agent"]),
        CompactionPlan(
            SessionId(stored["source"]), SessionId(stored["successor"]), SummaryId(stored["summary"]), stored["kept_from"]
        ),
        stored.get("otherwise"),
        Requester(
            RequestId(stored["request_id"]),
            stored["token_id"],
            stored.get("origin_request_id"),
            stored["depth"],
            stored["route"],
            stored.get("key_hash"),
            stored.get("body_hash"),
        ),
        Timestamp(stored["created_at"]),
        stored["ends_at"],
        finished_at=stored.get("finished_at"),
        compacted=stored["compacted"],
        kept=stored["kept"],
        model=stored.get("model"),
        cost=_decode_cost(stored),
        failure=JobFailure(**failure) if failure else None,
    )


async def read_job(store: TenantStore, job: JobId) -> Job | None:
    """The job; None when there is none.

    Raises:
        StorageUnavailable: throttled or unreachable through all retries.
    """
    item = await store.table.get(keys.job(store.tenant, job))
    return decode_job(item) if item is not None else None


def job_update(store: TenantStore, before: Job, after: Job) -> Update:
    """Return the write that changes the job ``before`` into ``after``. It fails if the job has ended meanwhile."""
    old = before.attributes()
    new = {name: value for name, value in after.attributes().items() if old.get(name) != value}
    return Update(keys.job(store.tenant, before.id), set=new, when=OneOf("status", [JobStatus.QUEUED, JobStatus.RUNNING]))


def _cost_attributes(cost: Cost) -> dict[str, Value]:
    return {
        "cost_usd": decimal_text(cost.usd),
        "cost_eur": decimal_text(cost.eur),
        "cost_source": cost.source.value,
        "sub_calls": cost.sub_calls,
    }


def _decode_cost(stored: Mapping[str, Any]) -> Cost:
    return Cost(Decimal(stored["cost_usd"]), Decimal(stored["cost_eur"]), CostSource(stored["cost_source"]), stored["sub_calls"])


_ERRORS: Final[Mapping[str, type[SpassError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpassError) and kind.code
}
