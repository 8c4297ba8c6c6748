"""A summary model that fails in whatever way, and requests that come again: a session is as it was, or compacted once."""

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from spass.core.messages import FinishReason
from spass.llm.errors import (
    BackendContextLength,
    BackendFailed,
    BackendRateLimited,
    BackendRefused,
    BackendRejected,
    BackendTimedOut,
)
from spass.llm.types import ChatDelta, ToolCallDelta
from tests.functions.gateway import Reply
from tests.functions.house import ASYNC, KEY, PLAIN, STOPPED, SUMMARY, Deltas, House, said

FAILURES: Final[Mapping[str, Deltas | Exception]] = {
    "down": BackendFailed("Down."),
    "slow": BackendTimedOut("Slow."),
    "rejected": BackendRejected("Bad request.", status=400),
    "refused": BackendRefused("No key."),
    "too long": BackendContextLength("Too long.", status=400),
    "nothing": (),
    "empty": said(""),
    "blank": said(" \n\t\u3000 "),
    "invisible": said("\u200b\u2060\ufeff"),
    "no word": said("..."),
    "a refusal": (ChatDelta(refusal="I cannot."), ChatDelta(finish_reason=FinishReason.STOP, usage=STOPPED)),
    "filtered": said("Ada moves", FinishReason.CONTENT_FILTER),
    "cut off": said("Ada moves to", FinishReason.LENGTH),
    "a tool call": (
        ChatDelta(
            tool_calls=(ToolCallDelta(0, "call_1", "calculator", '{"expression": "1"}'),), finish_reason=FinishReason.TOOL_CALLS
        ),
    ),
    "endless": said("word " * 50_000),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_summary_that_fails_changes_nothing_and_the_session_goes_on(house: House, name: str) -> None:
    session = house.session()
    before = house.seen(session)
    house.script.summary = FAILURES[name]
    failed = house.compact(session)
    assert (failed.status, failed.code) == (502, "summary_failed"), failed
    job = house.job(failed.json["error"]["details"]["job_id"]).json
    assert (job["status"], job["result"], job["error"]["code"]) == ("failed", None, "summary_failed")
    assert job["finished_at"] is not None
    assert house.seen(session) == before
    assert house.say(session, "And then?").status == 200
    house.script.summary = said(SUMMARY)
    assert house.compact(session).status == 200


def test_a_provider_without_room_now_fails_the_summary_and_says_when_to_come_back(house: House) -> None:
    session = house.session()
    before = house.seen(session)
    house.script.summary = BackendRateLimited("Busy.", retry_after=7)
    failed = house.compact(session)
    assert (failed.status, failed.code) == (502, "summary_failed")
    assert failed.json["error"]["details"]["reason"] == "rate_limited"
    assert int(failed.headers["retry-after"]) >= 1
    assert house.job(failed.json["error"]["details"]["job_id"]).json["error"]["code"] == "summary_failed"
    assert house.seen(session) == before
    assert house.say(session, "And then?").status == 200


def test_who_did_not_wait_finds_the_failure_in_the_job(house: House) -> None:
    session = house.session()
    house.script.summary = BackendFailed("Down.")
    reply = house.compact(session, ASYNC)
    house.machine.go_on()
    job = house.job(reply.json["job_id"])
    assert (reply.status, job.status, job.json["status"]) == (202, 200, "failed")
    assert set(job.json["error"]) == {"code", "message"}
    assert house.get(session)["archived_at"] is None


def test_a_key_gives_the_first_answer_again(house: House) -> None:
    session = house.session()
    first = house.compact(session, KEY)
    again = house.compact(session, KEY)
    assert (first.status, again.status, again.json) == (200, 200, first.json)
    assert again.headers["idempotency-replayed"] == "true"
    assert house.compact(session).code == "session_archived"
    reused = house.compact(session, KEY, raw=b"{}")
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    assert len(house.script.summaries) == 1


def test_a_key_keeps_that_a_client_does_not_wait(house: House) -> None:
    session = house.session()
    first = house.compact(session, KEY | ASYNC)
    house.machine.go_on()
    again = house.compact(session, KEY | ASYNC)
    assert (first.status, again.status, again.json["job_id"]) == (202, 202, first.json["job_id"])
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"


def test_a_failure_is_not_kept(house: House) -> None:
    session = house.session()
    house.script.summary = said("")
    assert house.compact(session, KEY).code == "summary_failed"
    house.script.summary = said(SUMMARY)
    assert house.compact(session, KEY).status == 200


def test_a_key_sent_many_times_at_once_compacts_once(house: House) -> None:
    session = house.session()
    gateway, replies = house.gateway, list[Reply]()

    async def at_once() -> None:
        posts = [gateway.post_meanwhile(f"{PLAIN}/{session}/compact", KEY, {}) for _ in range(6)]
        replies.extend(await asyncio.gather(*posts))

    gateway._loop.run_until_complete(at_once())
    assert {(reply.status, reply.code) for reply in replies} <= {(200, None), (409, "idempotency_in_progress")}
    answers = [reply.json for reply in replies if reply.status == 200]
    assert answers
    assert all(answer == answers[0] for answer in answers)
    assert len(house.script.summaries) == 1
    assert len(gateway.send("GET", PLAIN).json["sessions"]) == 2


def test_without_a_key_many_at_once_compact_once_too(house: House) -> None:
    session = house.session()
    gateway, replies = house.gateway, list[Reply]()

    async def at_once() -> None:
        posts = [gateway.post_meanwhile(f"{PLAIN}/{session}/compact", {}, {}) for _ in range(6)]
        replies.extend(await asyncio.gather(*posts))

    gateway._loop.run_until_complete(at_once())
    assert sorted(reply.status for reply in replies) == [200, *[409] * 5]
    assert {reply.code for reply in replies} <= {None, "compaction_in_progress", "session_busy", "session_archived"}
    assert len(house.script.summaries) == 1
