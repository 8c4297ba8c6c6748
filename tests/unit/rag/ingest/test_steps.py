"""The steps of the ingest machine, which may each come twice and in any state of the upload."""

from collections.abc import Sequence

import pytest

from spass.aws.clients import TenantStore
from spass.core.errors import InternalError, StorageUnavailable, UpstreamError, UpstreamRejected
from spass.core.ids import DocumentId, IndexId, UploadId
from spass.core.time import Deadline, now_s
from spass.rag.ingest import custody
from spass.rag.ingest.record import UploadRecord
from spass.rag.ingest.steps import Steps
from spass.rag.ingest.uploads import abandon_stale
from tests.unit.rag.ingest.harness import INDEX, IngestHarness, file_of, lines, numbered

pytestmark = pytest.mark.anyio
PATH = f"{INDEX}/a.jsonl"
SIZE = len(file_of(numbered(12)))
LINE = len(lines(("d0000", "text 0")))
MINUTES = 870.0
WEEK = 7 * 24 * 3600


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, harness: IngestHarness) -> list[tuple[str, list[int]]]:
    """The executions that were started, with their parts. Every file of more than four lines has several."""
    monkeypatch.setattr("spass.rag.ingest.worker.SMALL_BYTES", 4 * LINE)
    monkeypatch.setattr("spass.rag.ingest.worker.PART_BYTES", 4 * LINE)
    executions: list[tuple[str, list[int]]] = []

    async def start(_: object, index: IndexId, upload: UploadId, parts: Sequence[int], *, failures: int) -> None:
        executions.append((f"{upload}+{failures}" if failures else upload, list(parts)))

    jobs = type(harness.store.jobs)
    monkeypatch.setattr(jobs, "in_parts", property(lambda _: True))
    monkeypatch.setattr(jobs, "start_parts", start)
    return executions


async def begun(harness: IngestHarness, count: int = 12) -> tuple[str, Steps]:
    event = harness.put(PATH, file_of(numbered(count)))
    assert await harness.deliver(event)
    return event, harness.steps((await harness.only_upload()).id)


async def test_a_large_file_is_left_to_the_machine(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    event, steps = await begun(harness)
    upload = await harness.only_upload()
    ((name, parts),) = started
    assert (name, parts) == (upload.id, list(range(len(parts))))
    assert len(parts) > 1
    assert (upload.status, upload.bytes_total, upload.documents_ingested) == ("running", SIZE, 0)
    for number in reversed(parts):
        assert await steps.part(number, Deadline.after(MINUTES))
        assert await steps.part(number, Deadline.after(MINUTES)), "again"
    await steps.finish()
    await steps.finish()
    await steps.fail()
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.bytes_done) == ("succeeded", 12, SIZE)
    assert await harness.texts() == numbered(12)
    assert await harness.deliver(event)
    assert len(started) == 1


async def test_a_small_file_is_not(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    await harness.deliver(harness.put(PATH, file_of(numbered(3))))
    assert started == []
    assert (await harness.only_upload()).status == "succeeded"


async def test_a_step_whose_time_is_up_says_that_more_is_to_do(
    harness: IngestHarness, started: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.ingest.batches.MAX_DOCUMENTS", 2)
    _, steps = await begun(harness)
    ends = [await steps.part(0, Deadline.after(1)) for _ in range(2)]
    assert ends == [False, True]


async def test_an_upload_is_not_ended_while_parts_are_left(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    _, steps = await begun(harness)
    assert await steps.part(0, Deadline.after(MINUTES))
    with pytest.raises(InternalError):
        await steps.finish()
    assert (await harness.only_upload()).status == "running"


async def test_what_is_wrong_for_good_ends_all_parts(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    _, steps = await begun(harness)
    assert await steps.part(0, Deadline.after(MINUTES))
    await harness.rag.delete_index(harness.scope, INDEX)
    assert await steps.part(1, Deadline.after(MINUTES))
    assert await steps.part(2, Deadline.after(MINUTES))
    await steps.finish()
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested, upload.errors[0].code) == ("failed", 4, "index_replaced")


async def test_a_machine_that_gives_up_says_why_and_the_queue_may_start_another(
    harness: IngestHarness, started: list[tuple[str, list[int]]]
) -> None:
    event, steps = await begun(harness)
    assert await steps.part(0, Deadline.after(MINUTES))

    def fail(_: Sequence[str]) -> None:
        raise UpstreamError("down")

    harness.calls.before = fail
    for _ in range(3):
        with pytest.raises(UpstreamError):
            await steps.part(1, Deadline.after(MINUTES))
    await steps.fail()
    await steps.fail()
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("failed", 4)
    assert [(error.line, error.code) for error in upload.errors] == [(None, "upstream_error")]
    harness.calls.before = lambda _: None
    assert await harness.deliver(event), "it goes on by a machine of its own"
    assert await harness.deliver(event), "which is started once"
    assert [name for name, _ in started] == [upload.id, f"{upload.id}+1"]
    assert (await harness.only_upload()).status == "running"
    steps = harness.steps(upload.id, execution=1)
    for number in started[1][1]:
        assert await steps.part(number, Deadline.after(MINUTES))
    await steps.finish()
    assert (await harness.only_upload()).status == "succeeded"
    assert await harness.texts() == numbered(12)
    assert sorted(harness.calls.asked) == sorted(numbered(12).values())


async def test_a_part_that_was_called_before_its_machine_gave_up_and_begins_after_does_not_bring_the_upload_back(
    harness: IngestHarness, started: list[tuple[str, list[int]]]
) -> None:
    """It would be in work for ever: nobody is left to end it, and the queue believes that the machine has it."""
    event, late = await begun(harness)
    assert await late.part(0, Deadline.after(MINUTES))
    await late.fail()
    assert await late.part(1, Deadline.after(MINUTES)), "there is nothing left to do"
    assert (await harness.only_upload()).status == "failed"
    assert await harness.deliver(event)
    steps = harness.steps((await harness.only_upload()).id, execution=1)
    assert await steps.part(1, Deadline.after(MINUTES))
    await late.fail()
    assert await late.part(2, Deadline.after(MINUTES))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("running", 8), "the execution in force has not failed"
    for number in started[1][1]:
        assert await steps.part(number, Deadline.after(MINUTES))
    await steps.finish()
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.asked) == sorted(numbered(12).values())


async def test_a_part_whose_machine_gives_up_between_its_look_and_its_step_does_not_bring_the_upload_back(
    harness: IngestHarness, started: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, steps = await begun(harness)
    assert await abandon_stale(harness.store, now_s() + WEEK, Deadline.after(10)) == 0, "there is no index yet"
    assert await steps.part(0, Deadline.after(MINUTES))
    assert await abandon_stale(harness.store, now_s() + WEEK, Deadline.after(10)) == 1
    revive = custody.revive

    async def late(store: TenantStore, record: UploadRecord, execution: int) -> UploadRecord:
        await revive(store, record, execution)
        await steps.fail()
        return await revive(store, record, execution)

    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.custody.revive", late)
        assert not await steps.part(1, Deadline.after(MINUTES))
    assert await steps.part(1, Deadline.after(MINUTES))
    assert (await harness.only_upload()).status == "failed"


async def test_an_execution_that_was_taken_for_dead_goes_on_unless_another_was_started(
    harness: IngestHarness, started: list[tuple[str, list[int]]]
) -> None:
    """The laptop starts one that its last stop cut off again, with the same input, however long it was off."""
    event, steps = await begun(harness)
    assert await steps.part(0, Deadline.after(MINUTES))
    assert await abandon_stale(harness.store, now_s() + WEEK, Deadline.after(10)) == 1
    assert (await harness.only_upload()).errors[0].code == "abandoned"
    assert await steps.part(1, Deadline.after(MINUTES))
    upload = await harness.only_upload()
    assert (upload.status, upload.documents_ingested) == ("running", 8)
    assert await abandon_stale(harness.store, now_s() + WEEK, Deadline.after(10)) == 1
    assert await harness.deliver(event)
    assert [name for name, _ in started] == [upload.id, f"{upload.id}+2"]
    assert await steps.part(2, Deadline.after(MINUTES)), "another has it"
    assert (await harness.only_upload()).documents_ingested == 8
    assert await harness.steps(upload.id, execution=2).part(2, Deadline.after(MINUTES))
    assert (await harness.only_upload()).documents_ingested == 12


async def test_a_part_may_wait_a_day_for_a_function(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    _, steps = await begun(harness)
    assert await steps.part(0, Deadline.after(MINUTES))
    assert await abandon_stale(harness.store, now_s() + 23 * 3600, Deadline.after(10)) == 0
    assert await abandon_stale(harness.store, now_s() + 25 * 3600, Deadline.after(10)) == 1


async def test_a_machine_whose_start_was_not_heard_of_goes_on_and_embeds_nothing_in_vain(
    harness: IngestHarness, started: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that started it put the upload back: its message comes again a quarter of an hour later."""

    async def unheard(*_: object) -> None:
        raise StorageUnavailable("no answer")

    event = harness.put(PATH, file_of(numbered(12)))
    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.ingest.custody.give_to_machine", unheard)
        assert not await harness.deliver(event, message="m")
    upload = await harness.only_upload()
    assert (upload.status, len(started)) == ("queued", 1)
    steps = harness.steps(upload.id)
    assert await steps.part(0, Deadline.after(MINUTES))
    assert await harness.deliver(event, message="m", receives=2), "the machine has it"
    for number in started[0][1]:
        assert await steps.part(number, Deadline.after(MINUTES))
    await steps.finish()
    assert (await harness.only_upload()).status == "succeeded"
    assert sorted(harness.calls.asked) == sorted(numbered(12).values())
    assert len(started) == 1


async def test_the_model_refusing_everything_is_no_reason_to_try_again(
    harness: IngestHarness, started: list[tuple[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.ingest.part._MAX_REFUSED", 1)
    _, steps = await begun(harness)

    def refuse(_: Sequence[str]) -> None:
        raise UpstreamRejected("no")

    harness.calls.before = refuse
    assert await steps.part(0, Deadline.after(MINUTES))
    assert (await harness.only_upload()).errors[0].code == "upstream_rejected"


async def test_steps_of_an_upload_that_is_no_more_have_nothing_to_do(harness: IngestHarness) -> None:
    steps = harness.steps(UploadId("upl_01k9s3f5k2abcdefghjkmnpqrs"))
    assert await steps.part(0, Deadline.after(MINUTES))
    await steps.finish()
    await steps.fail()


async def test_what_a_user_changed_meanwhile_stays(harness: IngestHarness, started: list[tuple[str, list[int]]]) -> None:
    _, steps = await begun(harness)
    await steps.part(0, Deadline.after(MINUTES))
    await harness.rag.delete_document(harness.scope, INDEX, DocumentId("d0000"))
    for number in range(len(started[0][1])):
        await steps.part(number, Deadline.after(MINUTES))
    assert "d0000" not in await harness.texts()
