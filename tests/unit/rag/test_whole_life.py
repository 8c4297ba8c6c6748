"""Compare an index with a dictionary: several workers write, merge and sweep, lose races, and meet faults of AWS.

A failed step took effect completely or not at all. The test reads the index, and asserts that its state is one of the two.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.aws.bucket import S3Objects
from spass.aws.clients import Aws
from spass.core.errors import DocumentNotFound, IndexNotFound, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.manifest import read_manifest
from spass.rag.write.merge_job import merge
from spass.rag.write.sweep import GARBAGE_SECONDS, ORPHAN_SECONDS, sweep
from spass.store.bucket import ObjectSummary
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import RacingWriters, RagHarness
from tests.unit.rag.test_against_a_dictionary import cosine, is_in_any, listed_paths

T = TypeVar("T")

INDEX: Final = IndexId("berlin")
NAMES: Final = [f"d{n}" for n in range(10)]
WORKERS: Final = 3
STEP_COUNTS: Final = Counter[str]()
"""The numbers of steps and scripts so far. ``pytest -s`` prints them."""
HOUR, DAY = GARBAGE_SECONDS, ORPHAN_SECONDS
SWAP: Final = "TransactWriteItems"
OPERATIONS: Final = [SWAP] * 4 + ["GetObject", "PutObject", "DeleteObjects", "UpdateItem", "ListObjectsV2"]


@dataclass(frozen=True)
class ExpectedDocument:
    """The text and metadata that a document must have."""

    text: str
    metadata: Mapping[str, Json]


@dataclass(frozen=True)
class ExpectedIndex:
    """The state that the index must have. ``documents`` is None if there is no index."""

    documents: Mapping[str, ExpectedDocument] | None = None
    version: int = 0

    def best(self, query: str, top_k: int) -> list[tuple[str, float]]:
        scores = [(name, cosine(query, document.text)) for name, document in (self.documents or {}).items()]
        return sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:top_k]


class Clock:
    """The clock of garbage entries, leases and sweeps. It advances only between steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_000_000_000
        self.put_times: dict[str, int] = {}
        for module in ("index.manifest", "write.merge_job"):
            patch.setattr(f"spass.rag.{module}.now_s", lambda: self.seconds)
        put, list_objects = S3Objects.put, S3Objects.list_objects

        async def put_at_clock_time(objects: S3Objects, key: str, body: bytes, *, transient: bool = False) -> None:
            self.put_times[f"{objects._prefix}{key}"] = self.seconds
            await put(objects, key, body, transient=transient)

        async def list_with_put_times(objects: S3Objects, prefix: str) -> AsyncIterator[ObjectSummary]:
            async for summary in list_objects(objects, prefix):
                yield summary._replace(modified=self.put_times[f"{objects._prefix}{summary.key}"])

        patch.setattr(S3Objects, "put", put_at_clock_time)
        patch.setattr(S3Objects, "list_objects", list_with_put_times)


class FaultyRacingWriters(RacingWriters):
    """A fault plan in which rivals win the race, and which injects a fault into one of the step's own calls. Calls run one at a
    time, so that none is in flight while a rival runs."""

    def __init__(
        self, injected_fault: "InjectedFault | None", rivals: Sequence[Callable[[], Awaitable[object]]], operation: str
    ) -> None:
        super().__init__(*rivals, operation=operation)
        self.lock = asyncio.Lock()
        if injected_fault:
            self.fault, self.at = injected_fault.fault, injected_fault.at

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        async with self.lock:
            if any(earlier is call for earlier in self.calls):
                # A retry. If the reply was lost, the step took effect, and a rival would meet a state that it does not expect.
                return await FaultPlan.around(self, call, run)
            return await super().around(call, run)


@dataclass(frozen=True)
class InjectedFault:
    """A fault of call number ``at`` of a step, counted from 0."""

    fault: Fault
    at: int


@dataclass
class IndexSimulation:
    """An index, its workers, and the state that it must have."""

    harness: RagHarness
    clock: Clock
    workers: list[Rag] = field(init=False)
    state: ExpectedIndex = ExpectedIndex()

    def __post_init__(self) -> None:
        self.workers = [self.harness.cold() for _ in range(WORKERS)]

    async def run_step(
        self, step: "Step", worker: int, injected_fault: InjectedFault | None, rivals: Sequence["Step"], operation: str = SWAP
    ) -> None:
        """Run a step of a worker. ``rivals`` are steps of another worker, each of which runs before one of its swaps. If the step
        is a write or maintenance without a fault, they run before its calls of ``operation``."""
        rival = (worker + 1) % WORKERS
        operation = operation if isinstance(step, Write | MaintenanceStep) and not injected_fault else SWAP
        plan = FaultyRacingWriters(
            injected_fault, [partial(self.run_step, other, rival, None, ()) for other in rivals], operation
        )
        try:
            with inject(plan):
                answer = await step.run(self, self.workers[worker])
        except (Crash, StorageUnavailable):
            assert injected_fault, "the step failed without a fault"
            if plan.crashed:
                self.workers[worker] = self.harness.cold()
            with inject(RacingWriters()):
                stored = await self.read_state()
            before, after = self.state, step.after(self.state)
            assert stored in (before, after), f"{step} with {injected_fault}"
            self.state = stored
        else:
            before, self.state = self.state, step.after(self.state)
            assert answer == step.answer(before, self.state), f"{step} with {injected_fault}"

    async def read_state(self, worker: Rag | None = None) -> ExpectedIndex:
        """Return the state of the index that a worker reads."""
        scope = self.harness.scope
        manifest = await read_manifest(scope.store, INDEX)
        if not manifest.exists:
            return ExpectedIndex(None, manifest.version)
        documents = (await (worker or self.harness.cold()).reader.documents(scope, INDEX)).documents
        assert len({document.id for document in documents}) == len(documents) == manifest.doc_count
        assert manifest.text_bytes == sum(len(document.text.encode()) for document in documents)
        return ExpectedIndex(
            {document.id: ExpectedDocument(document.text, document.metadata) for document in documents}, manifest.version
        )

    async def check(self, worker: int, query: str) -> None:
        """Assert that a worker reads the expected state and that its answers equal those of the state."""
        assert await self.read_state(self.workers[worker]) == self.state
        if self.state.documents is not None:
            answer = await self.workers[worker].reader.query(self.harness.scope, INDEX, query, 5)
            assert [(hit.id, hit.score) for hit in answer.results] == self.state.best(query, 5)
            assert answer.version == self.state.version

    async def check_sweep(self) -> None:
        """Assert that two days later the sweep has deleted all objects except those of the current version."""
        for _ in range(2):
            self.clock.seconds += DAY + HOUR
            await sweep(self.harness.scope.store, self.clock.seconds, Deadline.after(60))
        manifest = await read_manifest(self.harness.scope.store, INDEX)
        stored = [key.removeprefix(f"rag/{INDEX}/") for key in await self.harness.scope.store.objects.list_keys("rag/")]
        listed = {path for path in listed_paths(manifest) if path.count("/") == 1}
        bitmaps = {path for path in listed_paths(manifest) if path.count("/") == 2}
        assert manifest.garbage == ()
        assert {path for path in stored if "/dead-" in path} == bitmaps
        assert len(stored) == 5 * len(listed) + len(bitmaps)
        assert all(is_in_any(path, listed) for path in stored)


class Step(Protocol):
    """A step of a worker. ``run`` executes it, ``after`` returns the state after it, and ``answer`` the expected answer."""

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex: ...

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object: ...

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object: ...


@dataclass(frozen=True)
class Write:
    """A replace or an append."""

    batch: Sequence[NewDocument]
    replaces: bool

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex:
        documents = {} if self.replaces else dict(state.documents or {})
        documents |= {document.id: ExpectedDocument(document.text, document.metadata) for document in self.batch}
        return ExpectedIndex(documents, state.version + 1)

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object:
        names = {document.id for document in self.batch}
        replaced = [name for name in before.documents or {} if self.replaces or name in names]
        return len(after.documents or {}), len(self.batch), len(replaced), after.version

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object:
        write = worker.writer.replace if self.replaces else worker.writer.append
        answer = await write(simulation.harness.scope, INDEX, self.batch)
        return answer.doc_count, answer.ingested, answer.replaced, answer.version


@dataclass(frozen=True)
class Patch:
    """A change of a document."""

    name: str
    change: DocumentPatch

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex:
        old = (state.documents or {}).get(self.name)
        if old is None:
            return state
        new = ExpectedDocument(self.change.text_after(old.text), self.change.metadata_after(old.metadata))
        return ExpectedIndex({**(state.documents or {}), self.name: new}, state.version + 1)

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object:
        return (after.documents or {}).get(self.name)

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object:
        try:
            document = await worker.writer.patch(simulation.harness.scope, INDEX, DocumentId(self.name), self.change)
        except (IndexNotFound, DocumentNotFound):
            return None
        return ExpectedDocument(document.text, document.metadata)


@dataclass(frozen=True)
class Remove:
    """A delete of a document."""

    name: str

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex:
        if self.name not in (state.documents or {}):
            return state
        remaining = {name: document for name, document in (state.documents or {}).items() if name != self.name}
        return ExpectedIndex(remaining, state.version + 1)

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object:
        return before != after

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object:
        return await worker.deleter.delete_document(simulation.harness.scope, INDEX, DocumentId(self.name))


@dataclass(frozen=True)
class Destroy:
    """A delete of the index."""

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex:
        return state if state.documents is None else ExpectedIndex(None, state.version + 1)

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object:
        return before != after

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object:
        return await worker.deleter.delete_index(simulation.harness.scope, INDEX)


@dataclass(frozen=True)
class MaintenanceStep:
    """A merge or a sweep, which must not change the state."""

    kind: str

    def after(self, state: ExpectedIndex, /) -> ExpectedIndex:
        return state

    def answer(self, before: ExpectedIndex, after: ExpectedIndex, /) -> object:
        return None

    async def run(self, simulation: IndexSimulation, worker: Rag, /) -> object:
        match self.kind:
            case "merge":
                await merge(simulation.harness.scope.store, ObjectCache(), INDEX, Deadline.after(3600))
            case _:
                await sweep(simulation.harness.scope.store, simulation.clock.seconds, Deadline.after(60))
        return None


texts = st.text("abü ", min_size=1, max_size=6).filter(str.strip)
metadata = st.dictionaries(st.sampled_from("kl"), st.integers(0, 3), max_size=2)
names = st.sampled_from(NAMES)
batches = st.lists(
    st.builds(NewDocument, id=names, text=texts, metadata=metadata),
    min_size=1,
    max_size=5,
    unique_by=lambda document: document.id,
)
changes = (
    st.builds(DocumentPatch, text=texts)
    | st.builds(DocumentPatch, metadata=metadata)
    | st.builds(DocumentPatch, text=texts, metadata=metadata)
)
appends = st.builds(Write, batches, st.just(False))
removals = st.builds(Remove, names)
replaces = st.builds(Write, batches, st.just(True))
maintenance = st.sampled_from([MaintenanceStep("merge"), MaintenanceStep("merge"), MaintenanceStep("sweep")])
kinds: list[st.SearchStrategy[Step]] = [
    *[appends] * 8,
    *[st.builds(Patch, names, changes)] * 2,
    *[removals] * 4,
    *[maintenance] * 5,
    replaces,
    st.builds(Destroy),
]
steps = st.sampled_from(kinds).flatmap(lambda kind: kind)
faults = st.none() | st.none() | st.builds(InjectedFault, st.sampled_from(list(Fault)), st.integers(0, 24))
scripts = st.lists(
    st.tuples(
        steps,
        st.integers(0, WORKERS - 1),
        faults,
        st.lists(steps, max_size=3),
        st.sampled_from(OPERATIONS),
        st.sampled_from([0, 0, 70, HOUR, DAY]),
    ),
    min_size=8,
    max_size=24,
)


def set_small_limits(patch: pytest.MonkeyPatch, *, merging: bool, bitmaps_in_objects: bool) -> None:
    """Set small limits: a job merges any two segments, an append merges up to four rows (only if ``merging``), an index has at
    most six segments, and its manifest lists four garbage entries."""
    patch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0)
    patch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 4 if merging else 1)
    patch.setattr("spass.rag.write.merge_policy._MANY_SMALL_SEGMENTS", 2)
    patch.setattr("spass.rag.write.merge_policy._MANY_SEGMENTS", 1)
    patch.setattr("spass.rag.write.merge_policy._MIN_DELETED_ROWS", 1)
    patch.setattr("spass.rag.write.merge_policy.HEADROOM", 2)
    for module in ("write.merge_policy", "write.writer", "index.manifest"):
        patch.setattr(f"spass.rag.{module}.MAX_SEGMENTS", 6)
    patch.setattr("spass.rag.index.manifest._MAX_GARBAGE_ENTRIES", 4)
    if bitmaps_in_objects:
        patch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)


@settings(max_examples=max(25, settings().max_examples // 10))
@given(scripts, texts, st.booleans(), st.booleans())
def test_an_index_answers_like_a_dictionary_with_faults_races_and_merges(
    aws: Aws,
    script: list[tuple[Step, int, InjectedFault | None, list[Step], str, int]],
    query: str,
    merging: bool,
    bitmaps_in_objects: bool,
) -> None:
    async def run(patch: pytest.MonkeyPatch) -> None:
        simulation = IndexSimulation(RagHarness(aws), Clock(patch))
        for step, worker, injected_fault, rivals, operation, pause_seconds in script:
            await simulation.run_step(step, worker, injected_fault, rivals, operation)
            await simulation.check((worker + 1) % WORKERS, query)
            simulation.clock.seconds += pause_seconds
        await simulation.check_sweep()
        await simulation.check(0, query)
        STEP_COUNTS.update(scripts=1, steps=len(script), rivals=sum(len(rivals) for _, _, _, rivals, _, _ in script))
        if not STEP_COUNTS["scripts"] % 25:
            line = (
                f"{STEP_COUNTS['steps']} steps, {STEP_COUNTS['rivals']} rivals, {STEP_COUNTS['scripts']} scripts: no difference"
            )
            sys.stdout.write(f"\n{line}\n")

    with pytest.MonkeyPatch.context() as patch:
        set_small_limits(patch, merging=merging, bitmaps_in_objects=bitmaps_in_objects)
        asyncio.run(run(patch))
