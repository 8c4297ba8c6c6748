"""The history of a workspace as a dictionary of versions, computed from the writes that took effect in the table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from spass.core.time import Clock
from spass.store.keys import VERSION_PREFIX, WORKSPACE_PREFIX
from spass.store.writes import Item
from spass.workspaces.change import Body, Change, Committed
from spass.workspaces.paths import WorkspacePath

Contents: TypeAlias = Mapping[str, bytes]
"""Bodies by path."""


class Place(NamedTuple):
    """A version of a generation. Without a workspace, the generation is empty."""

    generation: str
    version: int


NO_WORKSPACE = Place("", 0)


@dataclass(slots=True)
class Operation:
    """A commit that a writer tries once. ``writes`` and ``expected`` hold bodies, or None where there must be no file.

    ``effect`` is the version that it made, if it made one. ``first_moment`` is the number of states before it began.
    """

    id: str
    writes: Mapping[str, bytes | None]
    expected: Mapping[str, bytes | None]
    replaced: tuple[str, ...]
    generation: str | None
    change: Change
    first_moment: int
    effect: Place | None = None

    def apply(self, contents: Contents) -> Contents:
        """Return ``contents`` after this operation."""
        kept = {path: body for path, body in contents.items() if not any(_covers(folder, path) for folder in self.replaced)}
        after = {**kept, **self.writes}
        return {path: body for path, body in after.items() if body is not None}

    def is_expected(self, contents: Contents) -> bool:
        return all(contents.get(path) == body for path, body in self.expected.items())


def _covers(folder: str, path: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


@dataclass(slots=True)
class WorkspaceHistory:
    """What the workspace held at every moment. ``watch`` is the callback of the table. ``deleted_at`` has the time at which each
    deleted generation was deleted."""

    clock: Clock
    operations: dict[str, Operation] = field(default_factory=dict)
    contents: dict[Place, Contents] = field(default_factory=dict)
    states: list[Place] = field(default_factory=lambda: [NO_WORKSPACE])
    deleted_at: dict[str, float] = field(default_factory=dict)

    def watch(self, before: Item | None, after: Item | None) -> None:
        """Follow a write: a new version, or a new state of the head."""
        if after is None:
            return
        sk = str(after["sk"])
        if sk.startswith(VERSION_PREFIX):
            assert before is None, "a version never changes"
            generation, version = str(after["pk"]).rpartition("#")[2], after["version"]
            assert isinstance(version, int)
            self._add_version(Place(generation, version), str(after["run_id"]))
        elif sk.startswith(WORKSPACE_PREFIX):
            version = after["version"]
            assert isinstance(version, int)
            state = Place(str(after["generation"]), version)
            if state != self.states[-1]:
                self._check_state(state)
                if not state.generation:
                    self.deleted_at[self.states[-1].generation] = self.clock()
                self.states.append(state)

    def _check_state(self, state: Place) -> None:
        """Check that a version follows the one before, also across deletions, and that a tombstone keeps the number."""
        last = self.states[-1]
        assert state.version == last.version + bool(state.generation), f"{state} follows {last}"
        assert not state.generation or not last.generation or state.generation == last.generation, "deleted without a tombstone"

    def _add_version(self, place: Place, run_id: str) -> None:
        operation = self.operations[run_id]
        assert operation.effect is None, f"{operation.id} made the versions {operation.effect} and {place}"
        assert operation.generation in (None, place.generation), "a file of a deleted generation was restored"
        before = self.contents.get(Place(place.generation, place.version - 1), {})
        assert operation.is_expected(before), f"{operation.id} took effect on a version that it excludes"
        operation.effect = place
        self.contents[place] = operation.apply(before)

    def begin(self, operation: Operation) -> None:
        self.operations[operation.id] = operation

    @property
    def moment(self) -> int:
        """The number of the newest state."""
        return len(self.states) - 1

    def since(self, moment: int) -> Sequence[Place]:
        """Return the states from ``moment`` until now."""
        return self.states[moment:]

    def contents_since(self, moment: int) -> Iterator[Contents]:
        for place in self.since(moment):
            yield self.contents[place] if place.generation else {}

    def check_committed(self, operation: Operation, committed: Committed) -> None:
        """Check the answer of a commit against the history."""
        if committed.version is None:
            unchanged = [place for place in self.since(operation.first_moment) if place.version == committed.current]
            assert unchanged, f"version {committed.current} was not the newest one during {operation.id}"
            assert any(self._is_unchanged(operation, place) for place in unchanged), f"{operation.id} changes something"
            assert operation.effect is None
            return
        place = Place(committed.generation, committed.version)
        assert operation.effect == place, f"{operation.id} was told {place}"
        before = self.contents.get(Place(place.generation, place.version - 1), {})
        assert {str(file.path): file.status for file in committed.files} == _statuses(before, self.contents[place])

    def _is_unchanged(self, operation: Operation, place: Place) -> bool:
        contents = self.contents[place] if place.generation else {}
        return operation.is_expected(contents) and operation.apply(contents) == contents

    def check_conflict(self, operation: Operation) -> None:
        """Check that a path was not as expected at some moment of the operation."""
        assert operation.effect is None
        assert any(not operation.is_expected(contents) for contents in self.contents_since(operation.first_moment))


def _statuses(before: Contents, after: Contents) -> dict[str, str]:
    added = dict.fromkeys(after.keys() - before.keys(), "added")
    deleted = dict.fromkeys(before.keys() - after.keys(), "deleted")
    return added | deleted | {path: "changed" for path in before.keys() & after.keys() if before[path] != after[path]}


def bodies_of(contents: Mapping[WorkspacePath, bytes]) -> dict[str, bytes]:
    return {str(path): body for path, body in contents.items()}


def as_paths(values: Mapping[str, bytes | None]) -> dict[WorkspacePath, bytes | None]:
    return {WorkspacePath(path): body for path, body in values.items()}


def digests(values: Mapping[str, bytes | None]) -> dict[WorkspacePath, str | None]:
    return {WorkspacePath(path): None if body is None else Body.of(body).sha256 for path, body in values.items()}
