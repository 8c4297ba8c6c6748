"""Bound the number of children that wait, because each of them keeps its memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spass.sandbox.limits import LIMITS


class OpenChildren:
    """Counts the children of one launcher. ``maximum`` is the number that may wait; None is what fits into half of the machine's
    memory, at most ``ceiling``."""

    def __init__(self, maximum: int | None = None, *, ceiling: int | None = None) -> None:
        fitting = maximum or max(1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // LIMITS.memory)
        self.maximum: Final = fitting if ceiling is None else min(fitting, ceiling)
        self._count = 0

    @property
    def are_too_many(self) -> bool:
        """Return True if a child that begins to wait should be ended."""
        return self._count > self.maximum

    @contextmanager
    def count_one(self) -> Iterator[None]:
        """Count a child during the body."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
