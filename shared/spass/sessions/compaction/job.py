"""The record of a compaction job: ids, counts and times, and no text of the conversation."""

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
"""The time limit of a job. A job that exceeds it ends as failed."""
JOB_TTL_SECONDS: Final = 30 * 24 * 3600

_STORED_DETAILS: Final = ("reason", "successor_session_id")


class CompactSession(StrictBody):
    """The body of a request to compact a session. It has no fields yet."""


class JobStatus(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Requester:
    """The request that created a job: its token and its place in the tree of calls, for the audit, and the hashes of its
    idempotency key and body."""

    request_id: RequestId
    token_id: str
    origin: RequestId | None
    depth: int
    route: str
    key_hash: str | None = None
    body_hash: str | None = None


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The reason why a job failed. ``retry_after`` is in seconds."""

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
        """Return the failure as an error to raise."""
        kind = _ERRORS.get(self.code, SummaryFailed)
        return kind(self.message, details={**self.details, "job_id": job}, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Job:
    """The compaction of ``plan.source``, a session of ``user`` with ``agent``.

    ``fallback_model`` writes the summary if the tenant has set no model; None if the requester's token may not use it. The job
    ends at ``ends_at`` at the latest, in seconds since the epoch. ``cost``, the numbers of ``compacted`` and ``kept`` messages
    and the ``model`` of the summary are known when it has ended.
    """

    id: JobId
    status: JobStatus
    user: UserId
    agent: AgentName
    plan: CompactionPlan
    fallback_model: str | None
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
    def is_finished(self) -> bool:
        return self.status in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    def is_requested_by(self, request: IdempotentRequest | None) -> bool:
        """Return whether a request with the same Idempotency-Key created it.

        Raises:
            IdempotencyKeyReused: the key is the same and the body is not.
        """
        if request is None or self.requester.key_hash != request.digest:
            return False
        if self.requester.body_hash != request.body_hash:
            raise errors.IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
        return True

    def attributes(self) -> dict[str, Value]:
        """Return the item's attributes. A None is left out."""
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
            "otherwise": self.fallback_model,
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
    """Return the job in ``item``."""
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
    """Return the job, or None if there is none.

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
