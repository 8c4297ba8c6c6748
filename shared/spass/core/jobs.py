"""The types of jobs, and their encoding as the body of a queue's message.

Every room may send jobs (``store/jobs.py``) and ``spass.jobs`` dispatches them. Both import the encoding from here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from spass.core.codec import WrongValue, decode_record
from spass.core.ids import IndexId, JobId, ManagedAgentId, RunId, TenantId, UploadId, id_pattern

MAX_RECEIVES: Final = 5
"""Deliveries of a job's message before SQS moves it to the dead-letter queue."""


class WorkKind(StrEnum):
    """A kind of work whose workers all tenants share. Each has a queue of its own."""

    RUNS = "runs"
    FILES = "files"
    COMPACTIONS = "compactions"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a queue's message: the ``receives``-th, counted from 1. ``message`` is the message's id. ``sent`` is when
    it was sent, in seconds since the epoch. ``body`` is the body of a message with this task alone, to send it again."""

    message: str
    receives: int
    sent: float = 0.0
    body: str = ""

    @property
    def last(self) -> bool:
        """Return True if the queue of jobs will not deliver the message again."""
        return self.receives >= MAX_RECEIVES


@dataclass(frozen=True, slots=True)
class IngestUpload:
    tenant: TenantId
    index: IndexId
    upload: UploadId


@dataclass(frozen=True, slots=True)
class IngestPart:
    """Ingest the ``part`` of a large file, numbered from 0."""

    tenant: TenantId
    index: IndexId
    upload: UploadId
    part: int


@dataclass(frozen=True, slots=True)
class MergeSegments:
    """Merge segments of the index. ``place`` is the name of the place that a message has which waited for one."""

    tenant: TenantId
    index: IndexId
    place: str | None = None


@dataclass(frozen=True, slots=True)
class AccountCall:
    """Store an audit record that could not be stored when its call ended."""

    tenant: TenantId
    record: Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class StartCompaction:
    """Start the state machine for the compaction job ``id``."""

    tenant: TenantId
    id: JobId


@dataclass(frozen=True, slots=True)
class RunAgent:
    """Execute the queued run ``run`` of a managed agent."""

    tenant: TenantId
    agent: ManagedAgentId
    run: RunId


@dataclass(frozen=True, slots=True)
class Tick:
    """Run a managed agent, because its schedule says so. ``at`` is the scheduled time, or another text if it is unknown.

    ``schedule`` is a hash of the schedule, so that the tick of an earlier one is recognised.
    """

    tenant: TenantId
    agent: ManagedAgentId
    schedule: str
    at: str


Job: TypeAlias = IngestUpload | IngestPart | MergeSegments | AccountCall | StartCompaction | RunAgent | Tick

_KINDS: Final[Mapping[str, type[Job]]] = {
    "ingest": IngestUpload,
    "part": IngestPart,
    "merge": MergeSegments,
    "account": AccountCall,
    "compact": StartCompaction,
    "run": RunAgent,
    "tick": Tick,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_AGENT: Final = re.compile(id_pattern("agt"))
_PATTERNS: Final[Mapping[type[Job], Mapping[str, re.Pattern[str]]]] = {
    StartCompaction: {"id": re.compile(id_pattern("job"))},
    RunAgent: {"agent": _AGENT, "run": re.compile(id_pattern("run"))},
    Tick: {"agent": _AGENT},
}


def body_of(job: Job, traceparent: str | None = None) -> str:
    """Return the body of the message that asks for ``job``. With ``traceparent``, the worker continues this trace."""
    fields = {**asdict(job), "traceparent": traceparent}
    return json.dumps({"job": _NAMES[type(job)], **{name: value for name, value in fields.items() if value is not None}})


def kind_of(job: Job) -> WorkKind:
    """Return the kind of work that ``job`` is."""
    match job:
        case StartCompaction():
            return WorkKind.COMPACTIONS
        case RunAgent() | Tick():
            return WorkKind.RUNS
        case _:
            return WorkKind.FILES


def job_of(message: object) -> Job | None:
    """Return the job that a decoded body asks for, or None if ``body_of`` does not write such a body."""
    if not isinstance(message, dict) or (kind := _KINDS.get(str(message.get("job")))) is None:
        return None
    try:
        job = decode_record(kind, message)
    except WrongValue:
        return None
    is_valid = all(pattern.fullmatch(getattr(job, field)) for field, pattern in _PATTERNS.get(kind, {}).items())
    return job if is_valid else None
