"""The memory of an operator during one turn: its notes, its state, and the state that the commit writes."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from zlib import crc32

from spass.calls.scope import Scope
from spass.core.effects import CallError, Note, Recalled, SearchNotes, StoreNote
from spass.core.errors import OperatorNotFound, SpassError, StorageUnavailable, UpstreamTimeout
from spass.core.ids import Operator
from spass.core.messages import Json
from spass.core.tasks import map_concurrently
from spass.core.time import Clock, timestamp
from spass.memory.notes import MAX_NOTES, StoredNote, make_note, normalise_end, note_digest, rank_by_meaning, rank_by_words
from spass.memory.state import STATE_KEY, OperatorState, read_state, remove_garbage, state_text
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Put, Update

if TYPE_CHECKING:  # it imports numpy, which only a search by meaning and a new note need
    from spass.rag.index.embedding import Embedder
    from spass.rag.index.manifest import EmbeddingModel

_WRITES_AT_ONCE: Final = 25
_LOOKS: Final = 64
"""The writes of one of so many keys also read all notes, so that those of an operator that never searches are evicted too."""
_MAX_QUERY_CHARACTERS: Final = 2000
"""Characters of a query that are embedded. More text does not improve the search, and embedding it takes seconds."""
_NOTES_PER_PART: Final = 128
"""Notes whose missing vectors are computed and stored together: some requests to the embedding model at once."""


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

        async def write(one: tuple[StoredNote, bytes]) -> None:
            note, vector = one
            update = Update(self._key(note.key), set={"vector": vector, "model": model}, when=Equals("content", note.content))
            with suppress(ConditionFailed, StorageUnavailable):
                await self._store.table.write(update)

        computed = [*zip(notes, vectors, strict=True)]
        async with self._lock:
            for note, vector in computed:
                if self._notes is not None and self._notes.get(note.key) is note:
                    self._notes[note.key] = note.with_vector(model, vector)
        await map_concurrently(write, computed, limit=_WRITES_AT_ONCE)

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
        await map_concurrently(evict, oldest, limit=_WRITES_AT_ONCE)

    def _key(self, key: str) -> keys.Key:
        operator, digest = self._operator, note_digest(self.generation, key)
        return keys.operator_note(self._store.tenant, operator.user, operator.id, digest)


class OperatorMemory:
    """The memory of ``operator`` in the turn of ``scope``. It implements ``core.memory.Memory``.

    The state is read at the first use, and the notes at the first search. ``next_state`` is what ``set_state`` got last, or None.
    """

    def __init__(self, scope: Scope, operator: Operator, embedder: "Callable[[], Embedder]", clock: Clock = time.time) -> None:
        self.operator = operator
        self.next_state: Json = None
        self._scope = scope
        self._embedder = embedder
        self._clock = clock
        self._lock = asyncio.Lock()
        self._stored: OperatorState | None = None
        self._notebook: Notebook | None = None
        self._embeds_too_slowly = False
        self._computing_failed = False

    def set_state(self, value: Json) -> None:
        """Remember the state that the commit of the turn writes."""
        self.next_state = value

    async def recall(self, effect: SearchNotes) -> Recalled:
        """Return the notes that ``effect`` asks for. There are none if the operator was forgotten meanwhile."""
        notebook = await self._open()
        if notebook is None or effect.limit < 1:
            return Recalled()
        match effect.by:
            case "key":
                return Recalled(await self._by_key(notebook, effect.query))
            case "ends":
                return Recalled(await _by_end(notebook, effect.query, effect.limit))
            case "keyword":
                return Recalled(await rank_by_words(await notebook.read_all(), effect.query, effect.limit))
            case "semantic":
                return await self._by_meaning(notebook, effect.query, effect.limit)

    async def keep(self, effect: StoreNote) -> str:
        """Store a note and return its key. If the embedding model fails, the note is stored without a vector.

        Raises:
            OperatorNotFound: the operator was forgotten meanwhile.
            StorageUnavailable: the outcome is unknown; repeat the call.
        """
        notebook = await self._open()
        if notebook is None:
            raise OperatorNotFound("This operator was forgotten while it was running. Run it again.")
        note = make_note(effect.content, effect.key, effect.ends, notebook.generation, timestamp(self._clock()))
        with suppress(SpassError):
            (vector,) = await self._embed([note.content])
            note = note.with_vector(self._embedder().model.name, vector)
        await notebook.write(note)
        return note.key

    async def _open(self) -> Notebook | None:
        """Return the notes of the operator, or None if it was forgotten. Read the state at the first call."""
        async with self._lock:
            if self._notebook is None:
                store = self._scope.store
                self._stored = await read_state(store, self.operator)
                if self._stored is not None:
                    self._notebook = Notebook(store, self.operator, self._stored.generation)
        return self._notebook

    async def _by_key(self, notebook: Notebook, key: str) -> tuple[Note, ...]:
        if key == STATE_KEY:
            return self._state_note()
        note = await notebook.read(key)
        return (note.found(),) if note is not None else ()

    def _state_note(self) -> tuple[Note, ...]:
        """Return the next state if there is one, otherwise the stored one."""
        stored = self._stored
        if stored is None:
            return ()
        state = stored.state if self.next_state is None else self.next_state
        return (Note(STATE_KEY, state_text(state), created_at=stored.updated_at),) if state is not None else ()

    async def _by_meaning(self, notebook: Notebook, query: str, limit: int) -> Recalled:
        if not await notebook.read_all():
            return Recalled()
        try:
            (vector,) = await self._embed([query[:_MAX_QUERY_CHARACTERS]])
        except SpassError as error:
            return Recalled(error=CallError(error.code, error.message))
        model = self._embedder().model
        await self._compute_missing(notebook, model)
        notes = [note for note in await notebook.read_all() if note.has_vector(model)]
        return Recalled(rank_by_meaning(notes, vector, limit))

    async def _compute_missing(self, notebook: Notebook, model: "EmbeddingModel") -> None:
        """Compute the vectors that are missing or were made by another model. What fails is left to the next turns.

        Each part is stored before the next one is computed, so nothing is computed and paid for again. The order is random, and
        half of a part that fails is tried once more: in the end only the notes that the model refuses have no vector.
        """
        if self._computing_failed:
            return
        missing = [note for note in await notebook.read_all() if not note.has_vector(model)]
        random.shuffle(missing)
        try:
            async with asyncio.timeout(self._scope.deadline.remaining() / 2):
                for start in range(0, len(missing), _NOTES_PER_PART):
                    part = missing[start : start + _NOTES_PER_PART]
                    if not await self._compute(notebook, part, model):
                        self._computing_failed = True
                        await self._compute(notebook, part[: len(part) // 2], model)
                        return
        except TimeoutError:
            self._computing_failed = True

    async def _compute(self, notebook: Notebook, notes: Sequence[StoredNote], model: "EmbeddingModel") -> bool:
        """Compute and store the vectors of ``notes``. Return False if the embedding model fails."""
        try:
            vectors = await self._embed([note.content for note in notes]) if notes else []
        except SpassError:
            return False
        await notebook.write_vectors(notes, vectors, model.name)
        return True

    async def _embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors of ``texts``: float32, of length 1.

        The model may take half of the time that is left. If it takes longer, it is not called again in this turn, which needs the
        other half.

        Raises:
            SpassError: the embedding model fails, or the token may not use it.
        """
        if self._embeds_too_slowly:
            raise UpstreamTimeout("The embedding model did not answer in time before.")
        try:
            async with asyncio.timeout(self._scope.deadline.remaining() / 2):
                return [row.tobytes() for row in await self._embedder().embed(self._scope, texts)]
        except TimeoutError:
            self._embeds_too_slowly = True
            raise UpstreamTimeout("The embedding model did not answer in half of the time that was left.") from None


async def _by_end(notebook: Notebook, end: str, limit: int) -> tuple[Note, ...]:
    """Return the newest ``limit`` notes that are filed under ``end``."""
    wanted = normalise_end(end)
    found = [note for note in await notebook.read_all() if wanted in map(normalise_end, note.ends)]
    return tuple(note.found() for note in sorted(found, key=lambda note: note.age, reverse=True)[:limit])
