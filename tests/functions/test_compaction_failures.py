"""Failed summaries leave a session unchanged, and repeated requests compact it once."""

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from spass.core.messages import FinishReason
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendRateLimited,
    BackendTimeout,
)
from spass.models.types import ChatDelta
from spass.testing.model import calls
from tests.functions.compaction_harness import ASYNC, KEY, PLAIN, STOPPED, SUMMARY, CompactionHarness, Deltas, text_deltas
from tests.functions.gateway import Reply

FAILURES: Final[Mapping[str, Deltas | Exception]] = {
    "down": AttemptFailed("Down."),
    "slow": BackendTimeout("Slow."),
    "rejected": BackendBadRequest("Bad request.", status=400),
    "refused": BackendAuthError("No key."),
    "too long": BackendContextLength("Too long.", status=400),
    "nothing": (),
    "empty": text_deltas(""),
    "blank": text_deltas(" \n\t\u3000 "),
    "invisible": text_deltas("\u200b\u2060\ufeff"),
    "no word": text_deltas("..."),
    "a refusal": (ChatDelta(refusal="I cannot."), ChatDelta(finish_reason=FinishReason.STOP, usage=STOPPED)),
    "filtered": text_deltas("Ada moves", FinishReason.CONTENT_FILTER),
    "cut off": text_deltas("Ada moves to", FinishReason.LENGTH),
    "a tool call": tuple(calls(("calculator", {"expression": "1"}))),
    "endless": text_deltas("word " * 50_000),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_summary_changes_nothing_and_the_session_can_be_used(harness: CompactionHarness, name: str) -> None:
    session = harness.session()
    before = harness.seen(session)
    harness.model.summary = FAILURES[name]
    failed = harness.compact(session)
    assert (failed.status, failed.code) == (502, "summary_failed"), failed
    job = harness.job(failed.json["error"]["details"]["job_id"]).json
    assert (job["status"], job["result"], job["error"]["code"]) == ("failed", None, "summary_failed")
    assert job["finished_at"] is not None
    assert harness.seen(session) == before
    assert harness.say(session, "And then?").status == 200
    harness.model.summary = text_deltas(SUMMARY)
    assert harness.compact(session).status == 200


def test_a_rate_limit_of_the_provider_fails_the_summary_with_retry_after(harness: CompactionHarness) -> None:
    session = harness.session()
    before = harness.seen(session)
    harness.model.summary = BackendRateLimited("Busy.", retry_after=7)
    failed = harness.compact(session)
    assert (failed.status, failed.code) == (502, "summary_failed")
    assert failed.json["error"]["details"]["reason"] == "rate_limited"
    assert int(failed.headers["retry-after"]) >= 1
    assert harness.job(failed.json["error"]["details"]["job_id"]).json["error"]["code"] == "summary_failed"
    assert harness.seen(session) == before
    assert harness.say(session, "And then?").status == 200


def test_the_job_of_an_async_request_has_the_failure(harness: CompactionHarness) -> None:
    session = harness.session()
    harness.model.summary = AttemptFailed("Down.")
    reply = harness.compact(session, ASYNC)
    harness.machine.go_on()
    job = harness.job(reply.json["job_id"])
    assert (reply.status, job.status, job.json["status"]) == (202, 200, "failed")
    assert set(job.json["error"]) == {"code", "message"}
    assert harness.get(session)["archived_at"] is None


def test_a_repeated_key_gets_the_first_answer(harness: CompactionHarness) -> None:
    session = harness.session()
    first = harness.compact(session, KEY)
    replay = harness.compact(session, KEY)
    assert (first.status, replay.status, replay.json) == (200, 200, first.json)
    assert replay.headers["idempotency-replayed"] == "true"
    assert harness.compact(session).code == "session_archived"
    reused = harness.compact(session, KEY, raw=b"{}")
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    assert len(harness.model.summaries) == 1


def test_a_repeated_key_of_an_async_request_gets_the_first_ticket(harness: CompactionHarness) -> None:
    session = harness.session()
    first = harness.compact(session, KEY | ASYNC)
    harness.machine.go_on()
    replay = harness.compact(session, KEY | ASYNC)
    assert (first.status, replay.status, replay.json["job_id"]) == (202, 202, first.json["job_id"])
    assert replay.headers["location"] == first.headers["location"]
    assert replay.headers["idempotency-replayed"] == "true"


def test_a_failure_is_not_stored_under_the_key(harness: CompactionHarness) -> None:
    session = harness.session()
    harness.model.summary = text_deltas("")
    assert harness.compact(session, KEY).code == "summary_failed"
    harness.model.summary = text_deltas(SUMMARY)
    assert harness.compact(session, KEY).status == 200


def test_concurrent_requests_with_one_key_compact_once(harness: CompactionHarness) -> None:
    session = harness.session()
    gateway, replies = harness.gateway, list[Reply]()

    async def send_requests() -> None:
        posts = [gateway.post_async(f"{PLAIN}/{session}/compact", KEY, {}) for _ in range(6)]
        replies.extend(await asyncio.gather(*posts))

    gateway._loop.run_until_complete(send_requests())
    assert {(reply.status, reply.code) for reply in replies} <= {(200, None), (409, "idempotency_in_progress")}
    answers = [reply.json for reply in replies if reply.status == 200]
    assert answers
    assert all(answer == answers[0] for answer in answers)
    assert len(harness.model.summaries) == 1
    assert len(gateway.send("GET", PLAIN).json["sessions"]) == 2


def test_concurrent_requests_without_a_key_compact_once(harness: CompactionHarness) -> None:
    session = harness.session()
    gateway, replies = harness.gateway, list[Reply]()

    async def send_requests() -> None:
        posts = [gateway.post_async(f"{PLAIN}/{session}/compact", {}, {}) for _ in range(6)]
        replies.extend(await asyncio.gather(*posts))

    gateway._loop.run_until_complete(send_requests())
    assert sorted(reply.status for reply in replies) == [200, *[409] * 5]
    assert {reply.code for reply in replies} <= {None, "compaction_in_progress", "session_busy", "session_archived"}
    assert len(harness.model.summaries) == 1
