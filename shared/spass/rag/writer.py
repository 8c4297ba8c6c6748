"""Replace and append: embed, put a segment, swap the manifest."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio.to_thread

from spass.aws.table import Write
from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId, new_id
from spass.core.time import now, now_s
from spass.rag.answers import WriteAnswer
from spass.rag.cache import ObjectCache
from spass.rag.documents import NewDocument, check_limits, metadata_json
from spass.rag.embedding import Embedder
from spass.rag.ids import IdRow
from spass.rag.kill import Found, LiveIds, find_all, kill, live_ids, outdated, write_all_dead
from spass.rag.manifest import Manifest, Segment
from spass.rag.merge import choose_merge
from spass.rag.model import check_model
from spass.rag.objects import DOCS, IDS, META, OFFSETS, VECTORS, SegmentObjects
from spass.rag.segments import Rows, Vectors, decode, encode, join, json_line
from spass.rag.swap import Completion, Step, read_manifest, swap

_PARTS: Final = (VECTORS, IDS, META, DOCS, OFFSETS)


@dataclass(frozen=True, slots=True)
class Embedded:
    """New documents with their vectors, (n, d) float32, rows normalised."""

    documents: Sequence[NewDocument]
    vectors: Vectors

    def rows(self, found: dict[DocumentId, Found]) -> Rows:
        """Them as rows in the order of ids, written now; what was ``found`` under the same id keeps when it was created."""
        written = time.time_ns() // 1_000_000
        order = sorted(range(len(self.documents)), key=lambda n: self.documents[n].id)
        ids, docs, meta = [], [], []
        for document in (self.documents[n] for n in order):
            earlier = found.get(document.document_id)
            created = earlier.stored.created_at if earlier else written
            ids.append(IdRow(document.id, created, max(created, written), len(document.text.encode())))
            docs.append(json_line({"id": document.id, "text": document.text, "metadata": document.metadata}))
            meta.append(metadata_json(document.metadata))
        return Rows(ids, docs, meta, self.vectors[order])


class Writer:
    """Writes documents of the caller's tenant."""

    def __init__(self, embedder: Embedder, cache: ObjectCache) -> None:
        self._embedder = embedder
        self._cache = cache

    async def replace(
        self, scope: Scope, index_id: IndexId, documents: Sequence[NewDocument], completion: Completion | None
    ) -> WriteAnswer:
        """Make ``documents`` all that the index holds, under a new generation; the index is created if absent."""
        check_limits(documents)
        new = await self._embed(scope, documents)
        generation = new_id("gen")
        objects = SegmentObjects(scope.store, index_id, generation, self._cache)
        segment = await put_segment(objects, new.rows({}))

        async def plan(before: Manifest, name: str) -> Step[WriteAnswer]:
            after = self._first_of(generation, before).with_segments([segment], now())
            retired = [before.generation] if before.exists else []
            return self._step(index_id, before, after, name, retired, new, replaced=before.doc_count)

        return await swap(scope.store, index_id, scope.deadline, plan, _keep(completion))

    async def append(
        self, scope: Scope, index_id: IndexId, documents: Sequence[NewDocument], completion: Completion | None
    ) -> WriteAnswer:
        """Add ``documents``, each in place of the one with its id; the index is created if absent.

        Raises:
            EmbeddingModelMismatch: the index was built with another model or dimension.
        """
        check_limits(documents)
        check_model(await read_manifest(scope.store, index_id), self._embedder.model)
        new = await self._embed(scope, documents)

        async def plan(before: Manifest, name: str) -> Step[WriteAnswer]:
            check_model(before, self._embedder.model)
            after = before if before.exists else self._first_of(new_id("gen"), before)
            objects = SegmentObjects(scope.store, index_id, after.generation, self._cache)
            loaded = await live_ids(objects, before.segments)
            found = find_all(loaded, [document.document_id for document in documents])
            segments = await _appended(objects, loaded, found, new, name)
            retired = outdated(before.generation, before.segments, segments)
            return self._step(index_id, before, after.with_segments(segments, now()), name, retired, new, replaced=len(found))

        return await swap(scope.store, index_id, scope.deadline, plan, _keep(completion))

    async def _embed(self, scope: Scope, documents: Sequence[NewDocument]) -> Embedded:
        return Embedded(documents, await self._embedder.embed(scope, [document.text for document in documents]))

    def _first_of(self, generation: str, before: Manifest) -> Manifest:
        """The empty beginning of ``generation``; a living index keeps when it was created."""
        model = self._embedder.model
        return Manifest(
            generation=generation,
            embedding_model=model.name,
            dimensions=model.dimensions,
            created_at=before.created_at if before.exists else now(),
        )

    def _step(
        self,
        index_id: IndexId,
        before: Manifest,
        after: Manifest,
        name: str,
        retired: Sequence[str],
        new: Embedded,
        *,
        replaced: int,
    ) -> Step[WriteAnswer]:
        next_ = before.followed_by(after, swap=name, retired=retired, at=now_s())
        answer = WriteAnswer(index_id, next_.doc_count, len(new.documents), replaced, next_.version)
        return Step(answer, next_)


def _keep(completion: Completion | None) -> Callable[[WriteAnswer], Awaitable[Write]] | None:
    if completion is None:
        return None
    return lambda answer: completion.write(answer.body())


async def put_segment(objects: SegmentObjects, rows: Rows) -> Segment:
    """Put ``rows`` as a new segment that no version lists yet."""
    parts = await anyio.to_thread.run_sync(encode, rows)
    segment = Segment(new_id("seg"), len(rows.ids), rows.text_bytes, len(parts[DOCS]))
    await objects.write(segment.id, parts)
    return segment


async def _appended(
    objects: SegmentObjects, loaded: Sequence[LiveIds], found: dict[DocumentId, Found], new: Embedded, name: str
) -> tuple[Segment, ...]:
    """The segments after an append: the rows ``found`` dead, the small ones merged into the new one, and that put."""
    killed = kill(loaded, found.values())
    merged = {segment.id for segment in choose_merge(killed.left, len(new.documents), new.vectors.shape[1])}
    inputs = [new.rows(found)]
    for live in loaded:
        if live.segment.id in merged:
            dead = killed.changed.get(live.segment.id, live.dead)
            bodies = await asyncio.gather(*(objects.read(live.segment.id, part) for part in _PARTS))
            parts = dict(zip(_PARTS, bodies, strict=True))
            rows = [row for row in range(live.segment.rows) if row not in dead]
            inputs.append(await anyio.to_thread.run_sync(partial(decode, parts, rows)))
    segment = await put_segment(objects, await anyio.to_thread.run_sync(join, inputs))
    left = [other for other in killed.left if other.id not in merged]
    return (*await write_all_dead(objects, left, killed.changed, name), segment)
