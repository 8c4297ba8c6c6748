"""Which segments are merged: a million documents, written 256 at a time, by appends and jobs that come when they please."""

import random
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spass.core.errors import StorageUnavailable, TooManyDocuments
from spass.core.ids import IndexId, TenantId, new_id, random_suffix
from spass.core.time import now
from spass.rag.index.manifest import MAX_MANIFEST_BYTES, MAX_SEGMENTS, GarbageEntry, Manifest, Segment, swap_write
from spass.rag.write.merge_policy import choose_job_inputs, choose_merge, merge_due, stored_bytes

BATCH = 256
MILLION = 10**6
MIB = 2**20
FUNCTION_MERGE = 256 * MIB  # a merge holds twice what it reads: beside half of 1769 MiB for the cache, that is what fits
WORKER_MERGE = 640 * MIB  # and in 3008 MiB, where a merge empties the cache first


@dataclass
class Index:
    """An index whose segments have sizes only. A job takes up to ``delay`` appends, None: it never comes; so many of the appends
    as ``overtaken`` says lose their first race and merge nothing; ``rewritten`` rows of each were there before."""

    dimensions: int
    text: int
    delay: int | None
    overtaken: float = 0.0
    rewritten: int = 0
    seed: int = 0
    segments: list[Segment] = field(default_factory=list)
    most: int = 0
    inline: int = 0
    by_jobs: int = 0
    largest_inline: int = 0
    largest_job: int = 0
    _job: tuple[int, list[Segment]] | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = count()

    def append(self, number: int) -> None:
        self._end_job(number)
        self._kill()
        idle = self._random.random() < self.overtaken and len(self.segments) < MAX_SEGMENTS
        taken = [] if idle else choose_merge(self.segments, BATCH, self.dimensions)
        self.inline += self._made_of(taken, BATCH)
        self.largest_inline = max(self.largest_inline, self._bytes(taken))
        self.most = max(self.most, len(self.segments))
        if self._job is None and self.delay is not None and (inputs := choose_job_inputs(self.segments, self.dimensions)):
            self._job = number + self._random.randint(1, self.delay), inputs
            self.largest_job = max(self.largest_job, self._bytes(inputs))

    def _end_job(self, number: int) -> None:
        if self._job and self._job[0] <= number:
            listed = {segment.id: segment for segment in self.segments}
            inputs = [listed.get(segment.id) for segment in self._job[1]]
            if None not in inputs:
                self.by_jobs += self._made_of([segment for segment in inputs if segment], 0)
            self._job = None

    def _made_of(self, taken: list[Segment], new: int) -> int:
        rows = new + sum(segment.live_rows for segment in taken)
        size = rows * self.text
        self.segments = [s for s in self.segments if s not in taken] + [Segment(f"s{next(self._numbers):08}", rows, size, size)]
        return rows

    def _kill(self) -> None:
        weights = [segment.live_rows for segment in self.segments]
        for victim in self._random.choices(self.segments, weights, k=8) if self.segments and self.rewritten else []:
            at = next((n for n, segment in enumerate(self.segments) if segment.id == victim.id), None)
            if at is not None:
                dead = min(victim.rows, self.segments[at].deleted_rows + self.rewritten // 8)
                self.segments[at] = replace(self.segments[at], deleted_rows=dead)
        self.segments = [segment for segment in self.segments if segment.live_rows]

    def _bytes(self, segments: list[Segment]) -> int:
        return sum(stored_bytes(segment, self.dimensions) for segment in segments)

    def manifest_size(self) -> int:
        """Of the manifest in the table, if every segment had dead rows, and as much was retired as is remembered."""
        dead = f"dead-{random_suffix()}"
        listed = tuple(replace(segment, id=new_id("seg"), deleted_rows=1, bitmap_object=dead) for segment in self.segments)
        manifest = Manifest(new_id("gen"), 0, "m" * 40, self.dimensions, now(), now(), listed)
        paths = (f"{manifest.generation}/{new_id('seg')}/dead-{random_suffix()}" for _ in range(100))
        after = Manifest(garbage=tuple(GarbageEntry(path, 2**31) for path in paths)).next_version(manifest)
        attributes = swap_write(TenantId("t"), IndexId("i"), Manifest(), after).attributes
        return sum(len(name) + len(str(value).encode()) for name, value in attributes.items())


@pytest.mark.parametrize("delay", [1, 50, 1000, None], ids=lambda delay: f"delay {delay}")
@pytest.mark.parametrize("overtaken", [0.0, 0.5, 0.95], ids=lambda share: f"overtaken {share}")
@pytest.mark.parametrize(("dimensions", "text"), [(384, 300), (768, 1000)])
def test_a_million_documents_stay_in_64_segments_whenever_jobs_come(
    dimensions: int, text: int, delay: int | None, overtaken: float
) -> None:
    index = Index(dimensions, text, delay, overtaken)
    for number in range(MILLION // BATCH):
        index.append(number)
    assert index.most <= MAX_SEGMENTS
    assert sum(segment.live_rows for segment in index.segments) == MILLION // BATCH * BATCH
    assert index.manifest_size() < MAX_MANIFEST_BYTES < 32 * 1024
    assert index.largest_inline <= FUNCTION_MERGE
    assert index.largest_job <= WORKER_MERGE
    written = (index.inline + index.by_jobs) / MILLION
    assert written <= (6 if delay and delay <= 50 else 16), f"each row was written {written:.1f} times"


@pytest.mark.parametrize("delay", [1, 50, None], ids=lambda delay: f"delay {delay}")
def test_so_do_a_million_of_the_largest_documents_there_can_be(delay: int | None) -> None:
    """8 KiB of text and 2 KiB of metadata each, beside 768 numbers."""
    index = Index(768, 10_500, delay, overtaken=0.5)
    for number in range(MILLION // BATCH):
        index.append(number)
    assert index.most <= MAX_SEGMENTS
    assert index.largest_inline <= FUNCTION_MERGE
    assert index.largest_job <= WORKER_MERGE


def test_rows_that_were_written_over_do_not_stay_for_ever() -> None:
    index = Index(768, 1000, delay=20, rewritten=128)
    for number in range(MILLION // BATCH):
        index.append(number)
    rows, dead = (sum(getattr(segment, name) for segment in index.segments) for name in ("rows", "deleted_rows"))
    assert index.most <= MAX_SEGMENTS
    assert dead <= rows * 0.25
    assert index.by_jobs <= MILLION * 5


def segment(rows: int, dead: int = 0, *, size: int = 1000) -> Segment:
    return Segment(new_id("seg"), rows, rows * size, rows * size, dead)


def test_a_large_segment_of_which_a_quarter_is_dead_is_rewritten_by_itself() -> None:
    rotten = segment(100_000, 25_000)
    assert choose_job_inputs([rotten, segment(100_000, 24_999), segment(1000, 999)], 768) == [rotten]
    assert not merge_due(Manifest(generation="gen_1", dimensions=768, segments=(segment(100_000), segment(500, 400))))


def test_a_job_leaves_to_appends_what_they_take_up_themselves() -> None:
    assert choose_job_inputs([segment(2**n) for n in range(11)], 768) == []
    small = [segment(BATCH) for _ in range(40)]
    assert len(choose_job_inputs(small, 768)) == 40


def test_a_merge_takes_no_more_than_a_worker_holds() -> None:
    few = [segment(30_000) for _ in range(8)]
    assert 128 * MIB < sum(stored_bytes(one, 768) for one in choose_job_inputs(few, 768)) <= 256 * MIB
    many = [segment(40_000) for _ in range(56)]
    assert 256 * MIB < sum(stored_bytes(one, 768) for one in choose_job_inputs(many, 768)) <= WORKER_MERGE


def test_an_append_without_a_place_waits_for_a_job_or_says_that_the_index_is_full() -> None:
    for size, error in ((70_000, StorageUnavailable), (200_000, TooManyDocuments)):
        with pytest.raises(error):
            choose_merge([segment(size) for _ in range(MAX_SEGMENTS)], BATCH, 768)
    assert choose_merge([segment(70_000) for _ in range(MAX_SEGMENTS - 1)], BATCH, 768) == []


def test_an_append_makes_room_with_the_smallest() -> None:
    segments = [segment(5000 + 1000 * n) for n in range(56)]
    assert choose_merge(segments, BATCH, 768) == segments[:2]
