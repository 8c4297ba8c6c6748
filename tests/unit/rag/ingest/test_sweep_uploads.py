"""The hourly sweep sends lost messages of uploads again, and ends the uploads that no worker will finish."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from spass.core.time import Deadline, now_s
from spass.rag.ingest.sweep import SweptUploads, sweep_uploads
from spass.rag.ingest.upload_record import KEEP_SECONDS, Status
from spass.testing.faults import Crash
from tests.unit.rag.ingest.harness import INDEX, IngestHarness, jsonl_file, lines, numbered_texts

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
MINUTE, HOUR = 60, 3600
NOTHING = SweptUploads()


async def sweep(harness: IngestHarness, seconds: int) -> SweptUploads:
    """Sweep at ``seconds`` from now."""
    return await sweep_uploads(harness.store, now_s() + seconds, Deadline.after(10))


async def die_before_the_second_batch(harness: IngestHarness, event: str) -> None:
    def die(texts: Sequence[str]) -> None:
        if "text 4" in texts:
            raise Crash

    harness.calls.before_embedding = die
    with pytest.raises(Crash):
        await harness.deliver(event)
    harness.calls.before_embedding = lambda _: None


@pytest.fixture
def leases_expired(harness: IngestHarness) -> None:
    harness.change_settings(lease_seconds=-1)


@pytest.mark.usefixtures("leases_expired")
async def test_a_lost_message_of_a_part_is_sent_again_and_the_file_ends(harness: IngestHarness, documents_per_batch: int) -> None:
    await die_before_the_second_batch(harness, harness.put(PATH, jsonl_file(numbered_texts(10))))
    assert await sweep(harness, 29 * MINUTE) == NOTHING
    assert await sweep(harness, 31 * MINUTE) == SweptUploads(resent=1)
    assert await sweep(harness, 31 * MINUTE) == NOTHING, "the next resend is after half of the time"
    await harness.deliver_all()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(10)


async def test_a_lost_message_of_a_file_that_no_worker_has_planned_is_sent_again(harness: IngestHarness) -> None:
    """The index does not exist yet."""
    event = harness.put(PATH, jsonl_file(numbered_texts(2)))
    with pytest.MonkeyPatch.context() as patch:

        async def die(*_: object) -> None:
            raise Crash

        patch.setattr("spass.rag.ingest.worker.plan_upload", die)
        with pytest.raises(Crash):
            await harness.deliver(event)
    harness.change_settings(clock=lambda: now_s() + 35 * MINUTE)
    assert await sweep(harness, 35 * MINUTE) == SweptUploads(resent=1)
    await harness.deliver_all()
    assert await harness.texts() == numbered_texts(2)


@pytest.mark.usefixtures("leases_expired")
async def test_a_lost_message_of_a_large_file_is_sent_again(harness: IngestHarness) -> None:
    line = len(lines(("d0000", "text 0")))
    harness.change_settings(small_bytes=line, part_bytes=line)
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(20))))
    done, *lost = harness.receive()
    assert await harness.deliver(done)
    lost += harness.receive()
    assert len(lost) == 8
    assert await sweep(harness, 5 * HOUR) == NOTHING, "parts may wait for other files"
    assert await sweep(harness, 7 * HOUR) == SweptUploads(resent=1)
    assert sorted({job.part for job in await harness.deliver_all()}) == list(range(1, 20))
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(20)


@pytest.mark.usefixtures("leases_expired")
async def test_a_file_that_kills_every_worker_is_abandoned(harness: IngestHarness, documents_per_batch: int) -> None:
    event = harness.put(PATH, jsonl_file(numbered_texts(10)))
    await die_before_the_second_batch(harness, event)
    for minutes in (31, 61, 91):
        assert await sweep(harness, minutes * MINUTE) == SweptUploads(resent=1)
        for body in harness.receive():
            await die_before_the_second_batch(harness, body)
    assert await sweep(harness, 119 * MINUTE) == NOTHING
    assert await sweep(harness, 121 * MINUTE) == SweptUploads(abandoned=1)


@pytest.mark.parametrize(("status", "patience"), [(Status.RUNNING, 2 * HOUR), (Status.QUEUED, 4 * 24 * HOUR)])
async def test_an_idle_upload_is_abandoned(
    harness: IngestHarness, documents_per_batch: int, monkeypatch: pytest.MonkeyPatch, status: Status, patience: int
) -> None:
    """A queued upload may wait for as long as the queue keeps its message."""
    event = harness.put(PATH, jsonl_file(numbered_texts(9)))
    if status is Status.QUEUED:
        assert await harness.deliver(event, seconds=60)
        harness.receive()
    else:
        await die_before_the_second_batch(harness, event)
    assert (await harness.only_upload()).status is status
    for _ in range(3):
        assert await sweep(harness, patience - MINUTE) == SweptUploads(resent=1)
        harness.receive()
    assert await sweep(harness, patience - MINUTE) == NOTHING
    later = patience + 3 * MINUTE
    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.uploads.now_s", lambda: now_s() + later)
        shown = await harness.only_upload()
    assert await sweep(harness, later) == SweptUploads(abandoned=1)
    assert await sweep(harness, later) == NOTHING
    stored = await harness.only_upload()
    assert shown == stored
    assert (stored.status, stored.errors[0].code, stored.documents_ingested) == ("failed", "abandoned", documents_per_batch)
    harness.change_settings(clock=lambda: now_s() + later)
    assert await harness.deliver(event), "a late message continues it"
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered_texts(9)


async def test_the_sweep_ignores_ended_and_waiting_uploads(harness: IngestHarness) -> None:
    await harness.uploads.create(harness.scope, INDEX, "a.md", "text/markdown", 1000)
    assert await harness.deliver(harness.put(PATH, jsonl_file(numbered_texts(1))))
    assert await sweep(harness, KEEP_SECONDS - HOUR) == NOTHING


@pytest.mark.usefixtures("leases_expired")
@pytest.mark.parametrize("part_bytes", [len(lines(("d0000", "text 0"))), 2**20])
async def test_the_sweep_ends_an_upload_whose_parts_are_all_done(
    harness: IngestHarness, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    harness.change_settings(small_bytes=part_bytes, part_bytes=part_bytes)

    async def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.worker.end_done", die)
        waiting = [harness.put(PATH, jsonl_file(numbered_texts(3)))]
        for body in waiting:
            with suppress(Crash):
                await harness.deliver(body)
            waiting += harness.receive()
    assert (await harness.only_upload()).status == "running"
    assert await sweep(harness, 7 * HOUR if part_bytes < 2**20 else 31 * MINUTE) == SweptUploads(resent=1)
    await harness.deliver_all()
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("succeeded", 3)
