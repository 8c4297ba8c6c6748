"""Simulated appends of a million documents in batches of 256, with jobs at random times, keep the segments few."""

import random
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spass.core.errors import StorageUnavailable, TooManyDocuments
from spass.core.ids import IndexId, TenantId, new_id, random_suffix
from spass.core.time import now
from spass.rag.index.manifest import (
    CODED,
    MAX_MANIFEST_BYTES,
    MAX_SEGMENTS,
    GarbageEntry,
    Manifest,
    Segment,
    swap_write,
)
from spass.rag.write.merge_policy import bytes_to_read, choose_job_inputs, choose_merge, needs_merge_job

BATCH = 256
MILLION = 10**6
MIB = 2**20
FUNCTION_MERGE = 256 * MIB  # a merge needs twice that memory; half of 1769 MiB is for the cache
WORKER_MERGE = 640 * MIB  # of 3008 MiB; a merge empties the cache first


@dataclass
class SimulatedIndex:
    """An index of segments that have only sizes. A job ends within ``delay`` appends; with None it never runs. The share
    ``lost_share`` of appends loses its first race and merges nothing. Each append deletes ``rows_deleted`` earlier rows."""

    dimensions: int
    text: int
    delay: int | None
    lost_share: float = 0.0
    rows_deleted: int = 0
    seed: int = 0
    segments: list[Segment] = field(default_factory=list)
    max_segments: int = 0
    rows_by_appends: int = 0
    rows_by_jobs: int = 0
    largest_inline: int = 0
    largest_job: int = 0
    _job: tuple[int, list[Segment]] | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = count()

    def append(self, number: int) -> None:
        self._end_job(number)
        self._delete_rows()
        lost_race = self._random.random() < self.lost_share and len(self.segments) < MAX_SEGMENTS
        inputs = [] if lost_race else choose_merge(self.segments, BATCH, self.dimensions)
        self.rows_by_appends += self._merge(inputs, BATCH)
        self.largest_inline = max(self.largest_inline, self._bytes(inputs))
        self.max_segments = max(self.max_segments, len(self.segments))
        if self._job is None and self.delay is not None and (inputs := choose_job_inputs(self.segments, self.dimensions)):
            self._job = number + self._random.randint(1, self.delay), inputs
            self.largest_job = max(self.largest_job, self._bytes(inputs))

    def _end_job(self, number: int) -> None:
        if self._job and self._job[0] <= number:
            listed = {segment.id: segment for segment in self.segments}
            inputs = [listed.get(segment.id) for segment in self._job[1]]
            if None not in inputs:
                self.rows_by_jobs += self._merge([segment for segment in inputs if segment], 0)
            self._job = None

    def _merge(self, inputs: list[Segment], new: int) -> int:
        rows = new + sum(segment.live_rows for segment in inputs)
        size = rows * self.text
        self.segments = [s for s in self.segments if s not in inputs] + [coded(f"s{next(self._numbers):08}", rows, size)]
        return rows

    def _delete_rows(self) -> None:
        weights = [segment.live_rows for segment in self.segments]
        for chosen in self._random.choices(self.segments, weights, k=8) if self.segments and self.rows_deleted else []:
            at = next((n for n, segment in enumerate(self.segments) if segment.id == chosen.id), None)
            if at is not None:
                deleted = min(chosen.rows, self.segments[at].deleted_rows + self.rows_deleted // 8)
                self.segments[at] = replace(self.segments[at], deleted_rows=deleted)
        self.segments = [segment for segment in self.segments if segment.live_rows]

    def _bytes(self, segments: list[Segment]) -> int:
        return sum(bytes_to_read(segment, self.dimensions) for segment in segments)

    def manifest_size(self) -> int:
        """Return the bytes of the manifest if every segment has a bitmap object and the list of garbage is full."""
        deleted = f"deleted-{random_suffix()}"
        listed = tuple(replace(segment, id=new_id("seg"), deleted_rows=1, bitmap_object=deleted) for segment in self.segments)
        manifest = Manifest(new_id("gen"), 0, "m" * 40, self.dimensions, now(), now(), listed)
        paths = (f"{manifest.generation}/{new_id('seg')}/deleted-{random_suffix()}" for _ in range(100))
        after = Manifest(garbage=tuple(GarbageEntry(path, 2**31) for path in paths)).next_version(manifest)
        attributes = swap_write(TenantId("t"), IndexId("i"), Manifest(), after).set
        return sum(len(name) + len(str(value).encode()) for name, value in attributes.items())


@pytest.mark.parametrize("delay", [1, 50, 1000, None], ids=lambda delay: f"delay {delay}")
@pytest.mark.parametrize("lost_share", [0.0, 0.5, 0.95], ids=lambda share: f"lost_share {share}")
@pytest.mark.parametrize(("dimensions", "text"), [(384, 300), (768, 1000)])
def test_a_million_documents_stay_in_64_segments_with_any_delay_of_jobs(
    dimensions: int, text: int, delay: int | None, lost_share: float
) -> None:
    index = SimulatedIndex(dimensions, text, delay, lost_share)
    for number in range(MILLION // BATCH):
        index.append(number)
    assert index.max_segments <= MAX_SEGMENTS
    assert sum(segment.live_rows for segment in index.segments) == MILLION // BATCH * BATCH
    assert index.manifest_size() < MAX_MANIFEST_BYTES < 32 * 1024
    assert index.largest_inline <= FUNCTION_MERGE
    assert index.largest_job <= WORKER_MERGE
    written = (index.rows_by_appends + index.rows_by_jobs) / MILLION
    assert written <= (6 if delay and delay <= 50 else 16), f"each row was written {written:.1f} times"


@pytest.mark.parametrize("delay", [1, 50, None], ids=lambda delay: f"delay {delay}")
def test_a_million_of_the_largest_documents_stay_in_64_segments(delay: int | None) -> None:
    """Each has 8 KiB of text, 2 KiB of metadata and 768 numbers."""
    index = SimulatedIndex(768, 10_500, delay, lost_share=0.5)
    for number in range(MILLION // BATCH):
        index.append(number)
    assert index.max_segments <= MAX_SEGMENTS
    assert index.largest_inline <= FUNCTION_MERGE
    assert index.largest_job <= WORKER_MERGE


def test_at_most_a_quarter_of_all_rows_are_deleted_ones() -> None:
    index = SimulatedIndex(768, 1000, delay=20, rows_deleted=128)
    for number in range(MILLION // BATCH):
        index.append(number)
    rows, deleted = (sum(getattr(segment, name) for segment in index.segments) for name in ("rows", "deleted_rows"))
    assert index.max_segments <= MAX_SEGMENTS
    assert deleted <= rows * 0.25
    assert index.rows_by_jobs <= MILLION * 5


def segment(rows: int, deleted: int = 0, *, size: int = 1000) -> Segment:
    return replace(coded(new_id("seg"), rows, rows * size), deleted_rows=deleted)


def coded(name: str, rows: int, size: int) -> Segment:
    """Return a segment as this release writes it."""
    return Segment(name, rows, size, size, format=CODED)


def test_a_job_rewrites_a_large_segment_with_a_quarter_of_deleted_rows() -> None:
    rewritable = segment(100_000, 25_000)
    assert choose_job_inputs([rewritable, segment(100_000, 24_999), segment(1000, 999)], 768) == [rewritable]
    assert not needs_merge_job(Manifest(generation="gen_1", dimensions=768, segments=(segment(100_000), segment(500, 400))))


def test_a_job_does_not_merge_a_few_small_segments() -> None:
    assert choose_job_inputs([segment(2**n) for n in range(11)], 768) == []
    small = [segment(BATCH) for _ in range(40)]
    assert len(choose_job_inputs(small, 768)) == 40


def test_a_job_reads_at_most_the_memory_of_its_worker() -> None:
    few = [segment(30_000) for _ in range(8)]
    assert 128 * MIB < sum(bytes_to_read(one, 768) for one in choose_job_inputs(few, 768)) <= 256 * MIB
    many = [segment(40_000) for _ in range(56)]
    assert 256 * MIB < sum(bytes_to_read(one, 768) for one in choose_job_inputs(many, 768)) <= WORKER_MERGE


def test_an_append_without_a_free_segment_is_refused() -> None:
    for size, error in ((70_000, StorageUnavailable), (200_000, TooManyDocuments)):
        with pytest.raises(error):
            choose_merge([segment(size) for _ in range(MAX_SEGMENTS)], BATCH, 768)
    assert choose_merge([segment(70_000) for _ in range(MAX_SEGMENTS - 1)], BATCH, 768) == []


def test_an_append_merges_the_smallest_segments_if_few_are_free() -> None:
    segments = [segment(5000 + 1000 * n) for n in range(56)]
    assert choose_merge(segments, BATCH, 768) == segments[:2]
