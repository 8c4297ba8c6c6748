"""Dot products of 8-bit codes: by simsimd with the integer instructions of the processor, or slower by numpy."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from spass.rag.index.codes import MAX_CODE, Int8s

Sums = npt.NDArray[np.float64]

_CPUINFO: Final = Path("/proc/cpuinfo")
_EXACT_FLOAT32: Final = 2**24  # float32 has every whole number up to this
_CHUNK_NUMBERS: Final = 2**17  # that numpy converts together


def int8_dot(codes: Int8s, query: Int8s) -> Sums:
    """Return the dot products of (n, d) ``codes``, contiguous, and the (d,) ``query``: (n,) exact whole numbers.

    All codes are between -127 and 127, and d is at most 2^17.
    """
    return _kernel()(codes, query)


@cache
def _kernel() -> Callable[[Int8s, Int8s], Sums]:
    """Return the product by simsimd if it is installed and right on this processor, otherwise that by numpy."""
    try:
        by_simsimd = _load_simsimd()
    except ImportError:
        return dot_by_numpy
    codes = np.full((2, 4095), MAX_CODE, np.int8)
    codes[1, ::2] = -MAX_CODE
    is_right = np.array_equal(by_simsimd(codes, codes[1]), dot_by_numpy(codes, codes[1]))
    return by_simsimd if is_right else dot_by_numpy


def _load_simsimd() -> Callable[[Int8s, Int8s], Sums]:
    import simsimd

    if _has_sdot():
        simsimd.enable_capability("neon_i8")  # version 6.5 does not look for it in Linux, and its loop without it is slow

    def dot_by_simsimd(codes: Int8s, query: Int8s) -> Sums:
        # Without ``out``: with it, version 6.5 takes a reference of None away at each call, until Python 3.11 aborts.
        sums: Sums = np.asarray(simsimd.cdist(codes, query[None], "dot"))[:, 0]
        return sums

    return dot_by_simsimd


def _has_sdot() -> bool:
    """Return whether this is Linux on arm64 with the instruction SDOT, as Graviton 2 and newer: it is listed as ``asimddp``."""
    try:
        return "asimddp" in _CPUINFO.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False


def dot_by_numpy(codes: Int8s, query: Int8s) -> Sums:
    """Do the same as ``int8_dot`` with floats that have every sum that may occur."""
    dimensions = len(query)
    dtype: type[np.floating] = np.float32 if dimensions * MAX_CODE**2 <= _EXACT_FLOAT32 else np.float64
    sums = np.empty(len(codes))
    chunk = max(1, _CHUNK_NUMBERS // dimensions)
    for start in range(0, len(codes), chunk):
        sums[start : start + chunk] = codes[start : start + chunk].astype(dtype) @ query.astype(dtype)
    return sums
