"""A change of a workspace: what a writer wants, what it does to a tree, and who made it."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from spass.core.errors import VersionNotFound, WorkspaceConflict, WorkspaceFileNotFound
from spass.core.ids import AgentName, MessageId, SessionId, UserId
from spass.core.messages import Json
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.tree import Tree, TreeAt, TreeFile

Status = Literal["added", "changed", "deleted"]

MAX_MESSAGE_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Body:
    """The content of a file that is not stored yet, with its SHA-256 (hex)."""

    content: bytes = field(repr=False)
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Self:
        return cls(content, hashlib.sha256(content).hexdigest())

    @property
    def size(self) -> int:
        return len(self.content)


class ChangedFile(NamedTuple):
    """The change of one path: the file ``before``, and ``after``, which is a new body or a stored file. None: no file."""

    path: WorkspacePath
    before: TreeFile | None
    after: Body | TreeFile | None

    @property
    def status(self) -> Status:
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "changed"


@dataclass(frozen=True, slots=True)
class Plan:
    """The effect of a change on a tree of ``generation``: the files that it changes, by path."""

    files: Sequence[ChangedFile]
    generation: str

    def pin(self) -> "Change":
        """Return a change that does exactly this, and only while no path that it touches has changed."""
        return Change(
            {file.path: file.after for file in self.files},
            {file.path: file.before.sha256 if file.before else None for file in self.files},
            generation=self.generation,
        )

    def apply(self, tree: Tree, stored: Mapping[str, TreeFile]) -> Tree:
        """Return ``tree`` after the change. ``stored`` has the file of each body that ``bodies_to_store`` yields, by SHA-256."""
        files = dict(tree.files)
        for path, _, after in self.files:
            if after is None:
                del files[path]
            else:
                files[path] = _stored(after, stored, tree)
        return Tree(files)


def _stored(after: Body | TreeFile, stored: Mapping[str, TreeFile], tree: Tree) -> TreeFile:
    if isinstance(after, TreeFile):
        return after
    return stored.get(after.sha256) or tree.by_sha256[after.sha256]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a workspace, before it is planned on a tree.

    Attributes:
        files: what each path becomes: a new body, a file of an earlier version, or None to delete it.
        expected: the SHA-256 (hex) that a path must have, or None if it must be absent.
        replaced: files and folders of which nothing stays except ``files``. The root is ``""``.
        generation: the one to which the stored files among ``files`` belong. It must be the current one.
        always: whether an existing workspace gets a new version even if no file changes.
    """

    files: Mapping[WorkspacePath, Body | TreeFile | None]
    expected: Mapping[WorkspacePath, str | None] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    generation: str = ""
    always: bool = False

    @classmethod
    def of(
        cls, writes: Mapping[WorkspacePath, bytes | None], expected: Mapping[WorkspacePath, str | None] | None = None
    ) -> "Change":
        """Return the change that writes or deletes (None) files, if the ``expected`` paths are as they should be."""
        return cls({path: None if body is None else Body.of(body) for path, body in writes.items()}, expected or {})

    @classmethod
    def replace_all(cls, files: Mapping[WorkspacePath, bytes]) -> "Change":
        """Return the change after which the workspace holds ``files`` and nothing else."""
        return cls({path: Body.of(body) for path, body in files.items()}, replaced=("",))

    @classmethod
    def restore(cls, at: TreeAt, paths: Sequence[str] | None = None) -> "Change":
        """Return the change that brings back the tree of an earlier version, or the files and folders ``paths`` of it. What that
        version did not hold is deleted."""
        replaced = tuple(dict.fromkeys(paths)) if paths is not None else ("",)
        files = {path: at.tree.files[path] for folder in replaced for path in at.tree.covered(folder)}
        return cls(files, replaced=replaced, generation=at.generation)

    @property
    def creates(self) -> bool:
        """Return True if the change creates the workspace that it finds missing."""
        return bool(self.files or self.replaced) and None not in self.files.values()

    def plan(self, at: TreeAt) -> Plan:
        """Return what the change does to the tree ``at``.

        Raises:
            WorkspaceConflict: a path is not as expected; ``details.paths`` names all of them.
            WorkspaceFileNotFound: a path to restore is neither in the earlier version nor in this one.
            VersionNotFound: the earlier version was deleted with its workspace.
        """
        self._check_expected(at)
        if self.generation not in ("", at.generation):
            raise VersionNotFound("The version to restore was deleted with its workspace.", param="version")
        after_by_path: dict[WorkspacePath, Body | TreeFile | None] = {}
        known = _with_folders(self.files) if self.replaced else frozenset()
        for folder in self.replaced:
            covered = at.tree.covered(folder)
            if folder and not covered and folder not in known:
                raise WorkspaceFileNotFound(f"There is no file {folder!r}, neither in that version nor now.", param="paths")
            after_by_path |= dict.fromkeys(covered)
        after_by_path |= self.files
        files = (ChangedFile(path, at.tree.files.get(path), after) for path, after in sorted(after_by_path.items(), key=_path))
        return Plan([file for file in files if _sha256(file.before) != _sha256(file.after)], at.generation)

    def _check_expected(self, at: TreeAt) -> None:
        if self.generation not in ("", at.generation) and self.expected:
            raise WorkspaceConflict("The workspace was deleted in the meantime.", details={"paths": [*self.expected]})
        paths = [path for path, sha256 in self.expected.items() if at.tree.sha256(path) != sha256]
        if paths:
            names = ", ".join(map(repr, paths[:5])) + (" and others" if len(paths) > 5 else "")
            raise WorkspaceConflict(
                f"{names}: not as expected, because another writer has made a change. Read the newest version and repeat.",
                details={"paths": [*paths]},
            )

    def to_json(self) -> dict[str, Json]:
        """Return the change as JSON, bodies in base64."""
        return {
            "files": {path: _encode(after) for path, after in self.files.items()},
            "expected": {str(path): sha256 for path, sha256 in self.expected.items()},
            "replaced": [*self.replaced],
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> "Change":
        """Return the change that ``to_json`` encoded."""
        return cls(
            {WorkspacePath(path): _decode(after) for path, after in encoded["files"].items()},
            {WorkspacePath(path): sha256 for path, sha256 in encoded["expected"].items()},
            tuple(encoded["replaced"]),
            encoded["generation"],
        )


def _with_folders(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path[:end] for path in paths for end in (*_slashes(path), len(path)))


def _slashes(path: str) -> Iterator[int]:
    return (at for at, character in enumerate(path) if character == "/")


def _path(item: tuple[WorkspacePath, object]) -> str:
    return item[0]


def _sha256(file: Body | TreeFile | None) -> str | None:
    return file.sha256 if file else None


def _encode(after: Body | TreeFile | None) -> Json:
    match after:
        case None:
            return None
        case Body():
            return base64.b64encode(after.content).decode()
        case _:
            return [*after]


def _decode(encoded: object) -> Body | TreeFile | None:
    match encoded:
        case str():
            return Body.of(base64.b64decode(encoded))
        case [str(sha256), int(size), str(pack), int(offset), int(length), int(crc32)]:
            return TreeFile(sha256, size, pack, offset, length, crc32)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Author:
    """The origin of a version. ``message`` is the text that asked for the edit; a version keeps its first 200 characters.
    ``run_id`` and ``parent_log_id`` name the turn and the tool call in the audit."""

    user: UserId | None = None
    agent: AgentName | None = None
    session_id: SessionId | None = None
    message_id: MessageId | None = None
    run_id: str | None = None
    parent_log_id: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit. ``version`` is the new version, or None if nothing changed; ``current`` is the version after the
    commit in both cases. ``files`` are the changed files by path, and belong to ``generation``."""

    version: int | None
    current: int
    generation: str
    files: Sequence[ChangedFile]

    @property
    def counts(self) -> dict[Status, int]:
        """Return how many files were added, changed and deleted."""
        return {status: sum(file.status == status for file in self.files) for status in get_args(Status)}


def bodies_to_store(plan: Plan, tree: Tree) -> Iterator[Body]:
    """Yield each new body of the plan once, unless ``tree`` holds a file with the same content."""
    seen = set[str]()
    for file in plan.files:
        if isinstance(file.after, Body) and file.after.sha256 not in tree.by_sha256 and file.after.sha256 not in seen:
            seen.add(file.after.sha256)
            yield file.after
