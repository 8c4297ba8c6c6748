"""Dot products of codes are exact, with simsimd, without it, and with one that is wrong on this processor."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import numpy as np
import pytest
import simsimd

from spass.rag.index.embedding import normalise
from spass.rag.index.segments import Int8s, quantize
from spass.rag.search import code_scan as kernels
from spass.rag.search.code_scan import CodeBlock, CodedQuery, dot_by_numpy, int8_dot, scan_codes

_LENGTHS: Final = (*range(1, 301), *range(767, 4097), 2**17)


@pytest.fixture(autouse=True)
def fresh_kernel() -> Iterator[None]:
    """Choose the kernel again in each test, and after it."""
    kernels._kernel.cache_clear()
    yield
    kernels._kernel.cache_clear()


def extreme_codes(random: np.random.Generator, length: int) -> Int8s:
    """Return rows whose products with the first one are as large as they can be, of both signs, and any."""
    codes = random.integers(-127, 128, (4, length)).astype(np.int8)
    codes[0], codes[1] = 127, -127
    codes[2, ::2] = 127
    return codes


def test_simsimd_and_numpy_give_the_exact_sums_for_all_lengths() -> None:
    random = np.random.default_rng(0)
    for length in _LENGTHS:
        codes = extreme_codes(random, length)
        for query in (codes[0], codes[3]):
            exact = (codes.astype(np.int64) @ query.astype(np.int64)).tolist()
            assert int8_dot(codes, query).tolist() == exact, length
            assert dot_by_numpy(codes, query).tolist() == exact, length


def test_many_rows_are_multiplied_in_parts() -> None:
    codes = np.random.default_rng(1).integers(-127, 128, (3001, 96)).astype(np.int8)
    exact = (codes.astype(np.int64) @ codes[7].astype(np.int64)).tolist()
    assert int8_dot(codes, codes[7]).tolist() == exact
    assert dot_by_numpy(codes, codes[7]).tolist() == exact


def check_products() -> None:
    """Check sums, and that a scan finds the best rows."""
    random = np.random.default_rng(2)
    codes = extreme_codes(random, 768)
    exact = (codes.astype(np.int64) @ codes[3].astype(np.int64)).tolist()
    assert int8_dot(codes, codes[3]).tolist() == exact
    vectors = normalise(random.normal(size=(500, 64)).astype(np.float32))
    candidates = scan_codes([CodeBlock(0, 0, quantize(vectors))], CodedQuery(vectors[123]), 10)
    best = np.argsort(-(vectors.astype(np.float64) @ vectors[123]))[:10]
    assert set(best.tolist()) <= set(candidates.rows.tolist())


def test_without_simsimd_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simsimd", None)
    check_products()


class FakeSimsimd(ModuleType):
    """A simsimd whose products are wrong: they lose the last component, or wrap at 2^15. Without an ``error``, they are right."""

    def __init__(self, error: str = "") -> None:
        super().__init__("simsimd")
        self.error = error
        self.calls = 0
        self.enabled: list[str] = []

    def enable_capability(self, name: str) -> None:
        self.enabled.append(name)

    def cdist(self, codes: Int8s, queries: Int8s, metric: Literal["dot"]) -> object:
        self.calls += 1
        if not self.error:
            return simsimd.cdist(codes, queries, metric)
        if self.error == "lost":
            return simsimd.cdist(codes[:, :-1].copy(), queries[:, :-1].copy(), metric)
        return np.asarray(simsimd.cdist(codes, queries, metric)).astype(np.int64).astype(np.int16).astype(np.float64)


@pytest.mark.parametrize("error", ["lost", "wrapped"])
def test_a_kernel_that_is_wrong_on_this_processor_is_not_used(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSimsimd(error)
    monkeypatch.setitem(sys.modules, "simsimd", fake)
    check_products()
    assert fake.calls == 1, "only the comparison with numpy called it"


def test_a_right_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would not test simsimd."""
    fake = FakeSimsimd()
    monkeypatch.setitem(sys.modules, "simsimd", fake)
    check_products()
    assert fake.calls == 3, "the comparison, the products, and the scan"


@pytest.mark.parametrize(
    ("flags", "enabled"),
    [("fp asimd crc32 asimdhp asimddp", ["neon_i8"]), ("fp asimd crc32", []), ("avx2 \xff sse4_2", []), (None, [])],
)
def test_the_dot_product_of_arm64_is_enabled_where_the_processor_has_it(
    flags: str | None, enabled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\nFeatures\t: {flags}\n", encoding="latin-1")
    fake = FakeSimsimd()
    monkeypatch.setattr(kernels, "_CPUINFO", cpuinfo)
    monkeypatch.setitem(sys.modules, "simsimd", fake)
    check_products()
    assert (fake.enabled, fake.calls) == (enabled, 3)


_MANY_CALLS: Final = """
import resource, sys
import numpy as np
from spass.rag.search.code_scan import int8_dot
codes = np.ones((64, 256), np.int8)
for _ in range(100):
    int8_dot(codes, codes[0])
references, memory = sys.getrefcount(None), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(10_000):
    int8_dot(codes, codes[0])
assert "simsimd" in sys.modules
print(sys.getrefcount(None) - references, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory)
"""


def test_many_products_leak_neither_references_nor_memory() -> None:
    """With ``out=``, simsimd 6.5 takes a reference of None away at each call, until Python 3.11 aborts."""
    run = subprocess.run([sys.executable, "-c", _MANY_CALLS], capture_output=True, text=True, check=True, timeout=60)
    references, kibibytes = map(int, run.stdout.split())
    assert abs(references) < 100
    assert kibibytes < 4096, "10,000 results of 512 bytes each would be 5 MB"
