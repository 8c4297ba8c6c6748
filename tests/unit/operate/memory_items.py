"""Items in memory with the attributes that a restored table yields."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from operate.references import Subject, find_subjects
from operate.restored_table import ATTRIBUTES, StoredItem
from spass.store.keys import Key


class MemoryItems:
    """Items that can be read by key and by partition."""

    def __init__(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.items = sorted((dict(item) for item in items), key=lambda item: (item["pk"], item["sk"]))

    def get(self, key: Key) -> StoredItem | None:
        return next((_project(item) for item in self.items if (item["pk"], item["sk"]) == key), None)

    def query(self, partition: str) -> Sequence[StoredItem]:
        return [_project(item) for item in self.items if item["pk"] == partition]

    def subjects(self, now: float = 0) -> Iterator[Subject]:
        for _, group in groupby(self.items, key=lambda item: item["pk"]):
            yield from find_subjects(list(map(_project, group)), self, now)

    def subject(self, name: str) -> Subject:
        """Return the one subject whose name contains ``name``."""
        (found,) = [subject for subject in self.subjects() if name in subject.name]
        return found


def _project(item: StoredItem) -> StoredItem:
    return {name: item[name] for name in ATTRIBUTES if name in item}
