"""The types of jobs, and their encoding as the body of a queue's message.

Every room may send jobs (``store/jobs.py``) and ``spass.jobs`` dispatches them. Both import the encoding from here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from spass.core.ids import IndexId, JobId, ManagedAgentId, RunId, TenantId, UploadId, id_pattern

MAX_RECEIVES: Final = 5
"""Deliveries of a job's message before SQS moves it to the dead-letter queue."""
_COMPACTION: Final = re.compile(id_pattern("job"))
_AGENT: Final = re.compile(id_pattern("agt"))
_RUN: Final = re.compile(id_pattern("run"))


class WorkKind(StrEnum):
    """A kind of work whose workers all tenants share. Each has a queue of its own."""

    RUNS = "runs"
    FILES = "files"
    COMPACTIONS = "compactions"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a queue's message: the ``receives``-th, counted from 1. ``message`` is the message's id. ``sent`` is when
    it was sent, in seconds since the epoch. ``body`` is that of a message with the task alone, to send the task again."""

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
    """Continue an upload."""

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
    """Merge segments of an index."""

    tenant: TenantId
    index: IndexId


@dataclass(frozen=True, slots=True)
class AccountCall:
    """Store an audit record that could not be stored when its call ended."""

    tenant: TenantId
    record: Mapping[str, str | int]


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

_NAMES: Final[Mapping[type[Job], str]] = {
    IngestUpload: "ingest",
    IngestPart: "part",
    MergeSegments: "merge",
    AccountCall: "account",
    StartCompaction: "compact",
    RunAgent: "run",
    Tick: "tick",
}


def body_of(job: Job) -> str:
    """Return the body of the message that asks for ``job``."""
    return json.dumps({"job": _NAMES[type(job)], **asdict(job)})


def job_of(message: object) -> Job | None:
    """Return the job that a decoded body asks for, or None if ``body_of`` does not write such a body."""
    match message:
        case {"job": "ingest", "tenant": str(tenant), "index": str(index), "upload": str(upload)}:
            return IngestUpload(TenantId(tenant), IndexId(index), UploadId(upload))
        case {"job": "part", "tenant": str(tenant), "index": str(index), "upload": str(upload), "part": int(part)}:
            return IngestPart(TenantId(tenant), IndexId(index), UploadId(upload), part)
        case {"job": "merge", "tenant": str(tenant), "index": str(index)}:
            return MergeSegments(TenantId(tenant), IndexId(index))
        case {"job": "account", "tenant": str(tenant), "record": dict(record)}:
            return AccountCall(TenantId(tenant), record)
        case {"job": "compact", "tenant": str(tenant), "id": str(id)} if _COMPACTION.fullmatch(id):
            return StartCompaction(TenantId(tenant), JobId(id))
        case {"job": "run", "tenant": str(tenant), "agent": str(agent), "run": str(run)} if _AGENT.fullmatch(
            agent
        ) and _RUN.fullmatch(run):
            return RunAgent(TenantId(tenant), ManagedAgentId(agent), RunId(run))
        case {"job": "tick", "tenant": str(tenant), "agent": str(agent), "schedule": str(schedule), "at": str(at)} if (
            _AGENT.fullmatch(agent)
        ):
            return Tick(TenantId(tenant), ManagedAgentId(agent), schedule, at)
    return None
