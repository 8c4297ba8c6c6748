"""Find the objects that the items of a restored table name, and the items that are missing.

A *subject* consists of several items and objects of a tenant: a session, an index, a workspace or a managed agent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from operate.restored_table import StoredItem
from spass.approvals.record import call_object
from spass.core.errors import InternalError
from spass.core.ids import ApprovalId, IndexId, ManagedAgentId, SessionId, SummaryId, TenantId, WorkspaceId
from spass.managed.mailbox import agent_folder, text_object
from spass.rag.index.manifest import CODED, Manifest, Segment, decode_manifest
from spass.rag.index.objects import CODES, DOCS, IDS, META, OFFSETS, VECTORS
from spass.sessions.record import session_overflow_prefix, stored_overflow_key
from spass.store import keys
from spass.store.keys import Key
from spass.store.restored import LOST
from spass.workspaces.objects import FOLDER as WORKSPACES

_IN_WORK: Final = ("queued", "running")


class ItemReader(Protocol):
    """A table whose items can be read."""

    def get(self, key: Key) -> StoredItem | None: ...

    def query(self, partition: str) -> Sequence[StoredItem]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A subject, and all that it needs.

    ``objects`` maps the key of each object in ``folder`` to the words that name its loss. ``uploaded`` does so for the versions
    of uploaded files, by key and version. ``missing`` names its missing items. ``head`` is the item that gets its mark, or None
    if it is lost itself, or if the loss breaks nothing else. ``marked`` is its present mark.
    """

    kind: str
    name: str
    folder: str = ""
    objects: Mapping[str, str] = field(default_factory=dict)
    uploaded: Mapping[tuple[str, str], str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    head: Key | None = None
    generation: str = ""
    marked: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Partition:
    """The items of one partition of a tenant that have not expired. ``names`` is what follows the kind in its key."""

    tenant: TenantId
    names: Sequence[str]
    items: Sequence[StoredItem]
    table: ItemReader

    def begin(self, prefix: str) -> Iterator[tuple[str, StoredItem]]:
        """Yield the items whose sort key begins with ``prefix``, each with the rest of that key."""
        for item in self.items:
            sk = str(item["sk"])
            if sk.startswith(prefix):
                yield sk.removeprefix(prefix), item

    def object(self, key: str) -> str:
        """Return the key of a tenant's object in the bucket."""
        return f"T/{self.tenant}/{key}"


_Reader: TypeAlias = Callable[[_Partition], Iterator[Subject]]


def find_subjects(items: Sequence[StoredItem], table: ItemReader, now: float) -> Iterator[Subject]:
    """Yield the subjects that a partition has. ``now`` is in seconds since the epoch."""
    prefix, _, rest = str(items[0]["pk"]).partition("#")
    tenant, _, path = rest.partition("#")
    kind, *names = path.split("#")
    if prefix != "T" or kind not in _READERS:
        return
    live = [item for item in items if item.get("ttl", now + 1) > now]
    yield from _READERS[kind](_Partition(TenantId(tenant), names, live, table))


def _indices(at: _Partition) -> Iterator[Subject]:
    for name, item in at.begin(keys.RAG_INDEX_PREFIX):
        index = IndexId(name)
        subject = f"index {at.tenant}/{index}"
        head = keys.rag_manifest(at.tenant, index)
        try:
            manifest = decode_manifest(item)
        except (InternalError, ValueError):
            yield Subject(kind="index", name=subject, missing=("the manifest cannot be read",), head=head, marked=item.get(LOST))
            continue
        if manifest.exists:
            folder = at.object(f"rag/{index}/{manifest.generation}/")
            yield Subject(
                kind="index",
                name=subject,
                folder=folder,
                objects=_segment_objects(folder, manifest),
                head=head,
                generation=manifest.generation,
                marked=item.get(LOST),
            )


def _segment_objects(folder: str, manifest: Manifest) -> dict[str, str]:
    def names(segment: Segment) -> Iterator[str]:
        yield from (VECTORS, IDS, META, DOCS, OFFSETS)
        if segment.format >= CODED:
            yield CODES
        if segment.bitmap_object:
            yield segment.bitmap_object

    return {f"{folder}{one.id}/{name}": f"{name} of segment {one.id}" for one in manifest.segments for name in names(one)}


def _sessions(at: _Partition) -> Iterator[Subject]:
    session = SessionId(at.names[0])
    heads = [item for _, item in at.begin("HEAD")]
    turns = [(int(seq), item) for seq, item in at.begin(keys.TURN_PREFIX)]
    if any("deleted_at" in head for head in heads):
        return
    bodies = {key: f"messages {_range(seq, item)}" for seq, item in turns if (key := stored_overflow_key(item))}
    yield Subject(
        kind="session",
        name=f"session {at.tenant}/{session}",
        folder=at.object(session_overflow_prefix(session)),
        objects={at.object(key): name for key, name in bodies.items()},
        missing=[*_missing_turns(heads[0], turns), *_missing_summary(at, heads[0])] if heads else (["the head"] if turns else []),
        head=keys.session_head(at.tenant, session) if heads else None,
        marked=heads[0].get(LOST) if heads else None,
    )
    for approval, item in at.begin(keys.SESSION_APPROVAL_PREFIX):
        if item.get("is_large"):
            key = at.object(call_object(ApprovalId(approval)))
            yield Subject(kind="approval", name=f"approval {at.tenant}/{approval}", folder=key, objects={key: "its call"})


def _range(seq: int, turn: StoredItem) -> str:
    return f"{seq} to {turn['next_seq'] - 1}"


def _missing_turns(head: StoredItem, turns: Sequence[tuple[int, StoredItem]]) -> Iterator[str]:
    """Yield the messages between turns that no item has. Messages are numbered from 1 without gaps."""
    expected = 1
    for seq, turn in turns:
        if seq > expected:
            yield f"messages {expected} to {seq - 1}"
        expected = turn["next_seq"]
    if expected < head["next_seq"]:
        yield f"messages {expected} to {head['next_seq'] - 1}"


def _missing_summary(at: _Partition, head: StoredItem) -> Iterator[str]:
    summary = head.get("summary_id")
    if summary is None:
        return
    key = keys.session_summary(at.tenant, SessionId(at.names[0]), SummaryId(summary))
    if not any(item["sk"] == key.sk for item in at.items):
        yield "the record of the summary that it begins with"


def _workspaces(at: _Partition) -> Iterator[Subject]:
    """Yield the workspaces without any version, or the workspace whose versions these are."""
    if at.names:
        yield from _versions(at, WorkspaceId(at.names[0]), at.names[1])
        return
    for name, item in at.begin(keys.WORKSPACE_PREFIX):
        workspace, generation = WorkspaceId(name), item.get("generation", "")
        if not generation:
            continue
        partition = keys.workspace_versions_partition(at.tenant, workspace, generation)
        if not at.table.query(partition):
            yield _workspace(at, workspace, generation, item, missing=["all versions"])


def _versions(at: _Partition, workspace: WorkspaceId, generation: str) -> Iterator[Subject]:
    head = at.table.get(keys.workspace(at.tenant, workspace))
    if head is not None and head.get("generation") != generation:
        return  # it is deleted, and the sweep removes this generation
    numbered = [(int(number), item) for number, item in at.begin(keys.VERSION_PREFIX)]
    numbers = {number for number, _ in numbered}
    objects = {
        f"{at.object(f'{WORKSPACES}{workspace}/{generation}/')}{item[part]}": f"{part} of version {number}"
        for number, item in numbered
        for part in ("tree", "pack")
        if part in item
    }
    expected = range(min(numbers, default=1), head["version"] + 1 if head else max(numbers, default=0))
    missing = [f"version {number}" for number in expected if number not in numbers]
    yield _workspace(at, workspace, generation, head, objects=objects, missing=[*([] if head else ["the head"]), *missing])


def _workspace(
    at: _Partition,
    workspace: WorkspaceId,
    generation: str,
    head: StoredItem | None,
    *,
    objects: Mapping[str, str] | None = None,
    missing: Sequence[str] = (),
) -> Subject:
    return Subject(
        kind="workspace",
        name=f"workspace {at.tenant}/{workspace}",
        folder=at.object(f"{WORKSPACES}{workspace}/{generation}/"),
        objects=objects or {},
        missing=missing,
        head=keys.workspace(at.tenant, workspace) if head else None,
        generation=generation,
        marked=head.get(LOST) if head else None,
    )


def _managed_agents(at: _Partition) -> Iterator[Subject]:
    agent = ManagedAgentId(at.names[0])
    heads = [item for _, item in at.begin("AGENT")]
    if any("deleted_at" in head for head in heads):
        return
    texts = {key: str(item["sk"]) for item in at.items if (key := text_object(item))}
    yield Subject(
        kind="managed agent",
        name=f"managed agent {at.tenant}/{agent}",
        folder=at.object(agent_folder(agent)),
        objects={at.object(key): f"the text of {sk}" for key, sk in texts.items()},
        missing=() if heads else ("the agent's own item",),
        head=keys.managed_agent(at.tenant, agent) if heads else None,
        marked=heads[0].get(LOST) if heads else None,
    )


def _answers(at: _Partition) -> Iterator[Subject]:
    for item in at.items:
        if key := item.get("answer_object"):
            stored = at.object(key)
            yield Subject(
                kind="stored answer", name=f"stored answer {at.tenant}/{at.names[0]}", folder=stored, objects={stored: "its text"}
            )


def _uploads(at: _Partition) -> Iterator[Subject]:
    """Yield the uploads that still need their file, in the version that their item names."""
    for upload, item in at.begin(keys.UPLOAD_PREFIX):
        if (item.get("status") in _IN_WORK or item.get("stopped")) and item.get("version"):
            file = (f"uploads/{at.tenant}/{item['key']}", str(item["version"]))
            yield Subject(kind="upload", name=f"upload {at.tenant}/{at.names[0]}/{upload}", uploaded={file: "its file"})


_READERS: Final[Mapping[str, _Reader]] = {
    "RAG": _indices,
    "SES": _sessions,
    "WS": _workspaces,
    "MAGENT": _managed_agents,
    "IDEM": _answers,
    "UPLOAD": _uploads,
}
