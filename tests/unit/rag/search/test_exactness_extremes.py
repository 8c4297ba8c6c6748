"""Search is exact with the limits of production, and if the object ``codes`` is damaged.

With ``SPASS_SOAK`` set, there are a million near-duplicates.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import CODED
from spass.rag.index.objects import CODES
from spass.rag.index.segments import Vectors
from spass.store.tenant_store import TenantStore
from tests.sampling import SOAK
from tests.unit.rag.search.exact_index import KnownIndex, Members, Question, put_index
from tests.unit.rag.search.exact_vectors import Random, unit

pytestmark = pytest.mark.anyio
NEAR_DUPLICATES: Final = 1_000_000 if SOAK else 20_000
BUDGETS: Final = {"nothing": 0.0, "codes": 0.6, "everything": 4.0}  # of the bytes of the vectors


@pytest.fixture
def random() -> Random:
    return np.random.default_rng(19)


def split(rows: int, count: int) -> list[Members]:
    """Return ``count`` lists of row numbers, of which the first has half of the ``rows``. Each list is spread over all ids."""
    numbers = np.arange(rows)
    part = np.where(numbers % 2, 0, 1 + numbers // 2 % (count - 1))
    return [np.flatnonzero(part == number) for number in range(count)]


async def check(index: KnownIndex, budget: float, queries: Vectors, top_k: int = 10) -> None:
    """Compare the answers to ``queries`` with brute force. The cache may hold ``budget`` times the bytes of the vectors."""
    rows = len(index.vectors)
    objects = index.objects(ObjectCache(int(budget * index.vectors.nbytes)))
    for query in queries:
        question = Question(query, top_k, deleted=np.zeros(rows, np.bool_), matching=np.ones(rows, np.bool_))
        assert await index.search(objects, question) == index.brute_force(question)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
async def test_a_million_near_duplicates_do_not_hide_the_best(budget: float, random: Random) -> None:
    """Bounds exclude none of them."""
    centre = unit(random.normal(size=(1, 64))).astype(np.float64)
    vectors = unit(centre + 1e-5 * random.normal(size=(NEAR_DUPLICATES, 64)))
    index = await put_index(vectors, [0] * len(vectors), split(len(vectors), 4))
    assert index.segments[0].format == CODED
    await check(index, budget, np.concatenate([unit(centre), vectors[7:9], unit(random.normal(size=(1, 64)))]))


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize(("rows", "dimensions"), [(400, 4096), (5000, 1), (12_000, 100), (2, 4096)])
async def test_any_dimensions_and_more_results_than_rows(rows: int, dimensions: int, budget: float, random: Random) -> None:
    vectors = unit(random.normal(size=(rows, dimensions)))
    index = await put_index(vectors, [0] * rows, split(rows, 2))
    queries = unit(random.normal(size=(2, dimensions)))
    await check(index, budget, queries)
    await check(index, budget, queries, top_k=rows + 1)


Damage = Callable[[bytes], bytes | None]


def missing(stored: bytes) -> bytes | None:
    return None


def empty(stored: bytes) -> bytes | None:
    return b""


def without_the_last_byte(stored: bytes) -> bytes | None:
    return stored[:-1]


def half(stored: bytes) -> bytes | None:
    return stored[: len(stored) // 2]


def longer(stored: bytes) -> bytes | None:
    return stored + b"\x7f" * 1000


@pytest.mark.parametrize("block_bytes", [2**13, 2**23])
@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize("damage", [missing, empty, without_the_last_byte, half, longer], ids=lambda damage: damage.__name__)
async def test_damaged_codes_do_not_change_an_answer(
    damage: Damage, budget: float, block_bytes: int, random: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", block_bytes)
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 0)
    vectors = unit(random.normal(size=(2000, 64)))
    index = await put_index(vectors, [0] * len(vectors), split(len(vectors), 2))
    await damage_codes(index.store, damage)
    await check(index, budget, unit(random.normal(size=(3, 64))))


async def damage_codes(store: TenantStore, damage: Damage) -> None:
    """Damage the objects ``codes`` of all segments."""
    keys = [key for key in await store.objects.list_keys("rag/") if key.endswith(f"/{CODES}")]
    assert keys
    for key in keys:
        changed = damage(await store.objects.get(key))
        if changed is None:
            await store.objects.delete([key])
        else:
            await store.objects.put(key, changed)
