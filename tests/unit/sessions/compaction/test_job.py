"""A job's record: storing it, its failure as an error, and the request that created it."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.aws.dynamodb import attribute_of, item_of
from spass.core import errors
from spass.core.cost import Cost, CostSource
from spass.core.errors import IdempotencyKeyReused, SpassError, UpstreamError, UpstreamUnreachable
from spass.core.ids import AgentName, JobId, RequestId, SessionId, SummaryId, UserId
from spass.core.time import timestamp
from spass.sessions.compaction.job import Job, JobFailure, JobResult, JobStatus, Requester
from spass.sessions.compaction.plan import CompactionPlan
from spass.store.codec import decode
from spass.store.idempotency import RequestHashes

TEXT = st.text(min_size=1, max_size=20)
COUNT = st.integers(0, 10**9)
STAMP = st.integers(0, 4_000_000_000).map(timestamp)
AMOUNT = st.decimals(0, 1000, places=6).map(lambda amount: amount.normalize())
ERRORS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpassError) and vars(kind).get("code")
]
"""The leaves. A class that refines a leaf shares its code, so the record of a job cannot tell them apart."""

REQUESTERS = st.builds(
    Requester,
    st.builds(RequestId, TEXT),
    TEXT,
    st.none() | st.builds(RequestId, TEXT),
    COUNT,
    TEXT,
    st.none() | st.builds(RequestHashes, TEXT, TEXT),
)
JOBS = st.builds(
    Job,
    st.builds(JobId, TEXT),
    st.sampled_from(JobStatus),
    st.builds(UserId, TEXT),
    st.builds(AgentName, TEXT),
    st.builds(CompactionPlan, st.builds(SessionId, TEXT), st.builds(SessionId, TEXT), st.builds(SummaryId, TEXT), COUNT),
    st.none() | TEXT,
    REQUESTERS,
    STAMP,
    COUNT,
    finished_at=st.none() | STAMP,
    result=st.none() | st.builds(JobResult, COUNT, COUNT, TEXT),
    cost=st.builds(Cost, AMOUNT, AMOUNT, st.sampled_from(CostSource), COUNT),
    failure=st.none() | st.builds(JobFailure, TEXT, TEXT, st.none() | COUNT, st.dictionaries(TEXT, TEXT, max_size=2)),
)


@given(job=JOBS)
def test_a_stored_job_is_decoded_unchanged(job: Job) -> None:
    assert decode(Job, item_of({name: attribute_of(value) for name, value in job.attributes().items()})) == job


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_a_failure_becomes_the_error_that_caused_it(kind: type[SpassError]) -> None:
    failed = kind("No room at db-7.internal.example.com.", retry_after=2.2, details={"reason": "busy", "other": 1})
    raised = JobFailure.of(failed).error(JobId("job_1"))
    assert type(raised) is kind
    assert raised.details == {"reason": "busy", "job_id": "job_1"}
    assert raised.retry_after == 3
    assert "internal" not in raised.message


def test_a_refined_failure_becomes_the_error_whose_code_it_shares() -> None:
    failed = UpstreamUnreachable("The model's provider failed.")
    assert type(JobFailure.of(failed).error(JobId("job_1"))) is UpstreamError


def test_a_job_recognises_the_request_that_created_it() -> None:
    requester = Requester(RequestId("req_1"), "token", None, 0, "/", RequestHashes("key", "body"))
    job = Job(
        JobId("job_1"),
        JobStatus.QUEUED,
        UserId("ana"),
        AgentName("plain"),
        CompactionPlan(SessionId("ses_1"), SessionId("ses_2"), SummaryId("sum_1"), 3),
        "small",
        requester,
        timestamp(0),
        3600,
        cost=Cost(Decimal(1), Decimal(1), CostSource.CATALOG, 1),
    )
    assert job.is_requested_by(RequestHashes("key", "body"))
    assert not job.is_requested_by(RequestHashes("another key", "body"))
    assert not job.is_requested_by(None)
    without_key = replace(job, requester=replace(requester, idempotency=None))
    assert not without_key.is_requested_by(RequestHashes("key", "body"))
    with pytest.raises(IdempotencyKeyReused):
        job.is_requested_by(RequestHashes("key", "another body"))
