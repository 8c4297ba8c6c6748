"""The notes of an operator during one turn: read once, in pages, and kept current."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

from spass.core.errors import StorageUnavailable
from spass.core.ids import Operator
from spass.core.tasks import run_concurrently
from spass.memory.notes import MAX_NOTES, StoredNote, note_digest, note_key
from spass.memory.state import remove_garbage
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Put, Update

_WRITES_AT_ONCE: Final = 25
_LOOKS: Final = 64
"""The writes of one of so many keys also read all notes, so that those of an operator that never searches are evicted too."""


class Notebook:
    """The notes of one ``generation`` of an operator. Concurrent tool calls of a turn share it."""

    def __init__(self, store: TenantStore, operator: Operator, generation: str) -> None:
        self._store = store
        self._operator = operator
        self.generation = generation
        self._notes: dict[str, StoredNote] | None = None
        self._lock = asyncio.Lock()

    async def read_all(self) -> Sequence[StoredNote]:
        """Return all notes, in no particular order. Evict the oldest beyond ``MAX_NOTES``."""
        async with self._lock:
            return [*(await self._load()).values()]

    async def read(self, key: str) -> StoredNote | None:
        """Return the note ``key``, or None. Errors are those of ``read_all``."""
        async with self._lock:
            if self._notes is not None:
                return self._notes.get(key)
            item = await self._store.table.get(self._key(key))
            return decode(StoredNote, item) if item is not None else None

    async def write(self, note: StoredNote) -> None:
        """Store ``note`` in the place of one with the same key.

        Raises:
            StorageUnavailable: the outcome is unknown; repeat the call.
        """
        async with self._lock:
            notes, self._notes = self._notes, None  # until the outcome of the write is known
            await self._store.table.write(Put(self._key(note.key), encode(note)))
            if notes is not None:
                self._notes = notes
                notes[note.key] = note
                await self._evict(notes, newest=note.key)
            elif crc32(note.key.encode()) % _LOOKS == 0:
                with suppress(StorageUnavailable):
                    await self._load(newest=note.key)

    async def write_vectors(self, notes: Sequence[StoredNote], vectors: Sequence[bytes], model: str) -> None:
        """Store the ``vectors`` that ``model`` made of ``notes``, unless a note has changed since. A vector that is not stored is
        computed by a later search."""

        async def write(note: StoredNote, vector: bytes) -> None:
            update = Update(self._key(note.key), set={"vector": vector, "model": model}, when=Equals("content", note.content))
            with suppress(ConditionFailed, StorageUnavailable):
                await self._store.table.write(update)

        computed = [*zip(notes, vectors, strict=True)]
        async with self._lock:
            for note, vector in computed:
                if self._notes is not None and self._notes.get(note.key) is note:
                    self._notes[note.key] = note.with_vector(model, vector)
        for start in range(0, len(computed), _WRITES_AT_ONCE):
            await run_concurrently([write(*one) for one in computed[start : start + _WRITES_AT_ONCE]])

    async def _load(self, newest: str | None = None) -> dict[str, StoredNote]:
        if self._notes is None:
            operator, store = self._operator, self._store
            partition = keys.operator_partition(store.tenant, operator.user, operator.id)
            found = [decode(StoredNote, item) for item in await store.table.query(partition, prefix=keys.NOTE_PREFIX)]
            notes = {note.key: note for note in found if note.generation == self.generation}
            if len(notes) < len(found):
                with suppress(StorageUnavailable):
                    await remove_garbage(store, operator)
            await self._evict(notes, newest)
            self._notes = notes
        return self._notes

    async def _evict(self, notes: dict[str, StoredNote], newest: str | None) -> None:
        """Remove the oldest of ``notes`` beyond ``MAX_NOTES``, but not the one that was just written. One that cannot be removed
        is evicted at another time."""

        async def evict(note: StoredNote) -> None:
            with suppress(ConditionFailed, StorageUnavailable):
                await self._store.table.write(Delete(self._key(note.key), Equals("created_at", note.created_at)))

        if (excess := len(notes) - MAX_NOTES) <= 0:
            return
        oldest = sorted((note for note in notes.values() if note.key != newest), key=lambda note: note.age)[:excess]
        for note in oldest:
            del notes[note.key]
        for start in range(0, excess, _WRITES_AT_ONCE):
            await run_concurrently([evict(note) for note in oldest[start : start + _WRITES_AT_ONCE]])

    def _key(self, key: str) -> keys.Key:
        return note_key(self._store.tenant, self._operator, note_digest(self.generation, key))
