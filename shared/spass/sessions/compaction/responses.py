"""The answers about compactions and their jobs."""

from typing import Annotated, Literal

from pydantic import Field

from spass.sessions.compaction.job import Job, JobStatus
from spass.tenancy.response_model import Count, DateTime, JobIdText, ResponseModel, SessionIdText, SummaryIdText


class Compaction(ResponseModel):
    """A compaction that took place."""

    job_id: JobIdText
    source_session_id: SessionIdText
    successor_session_id: SessionIdText
    summary_id: SummaryIdText
    summary_text: Annotated[str | None, Field(description="Null when the successor has been deleted since.")]
    summary_model: str
    compacted_message_count: Count
    kept_message_count: Count


class JobTicket(ResponseModel):
    """A job that continues. `Location` is its address."""

    job_id: JobIdText
    status: JobStatus


class JobError(ResponseModel):
    """The reason why a job failed."""

    code: str
    message: str


class JobView(ResponseModel):
    """A job. `result` is there when it has succeeded, `error` when it has failed."""

    id: JobIdText
    kind: Literal["compaction"] = "compaction"
    status: JobStatus
    created_at: DateTime
    finished_at: DateTime | None
    result: Compaction | None
    error: JobError | None

    @classmethod
    def of(cls, job: Job, result: Compaction | None) -> "JobView":
        return cls(
            id=job.id,
            status=job.status,
            created_at=job.created_at,
            finished_at=job.finished_at,
            result=result,
            error=JobError(code=job.failure.code, message=job.failure.message) if job.failure else None,
        )
