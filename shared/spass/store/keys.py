"""The key of every item in the table. A tenant's keys begin with ``T#<tenant>#``. No id in a partition key contains a ``#``."""

from typing import NamedTuple

from spass.core.ids import (
    AgentName,
    ApprovalId,
    IndexId,
    JobId,
    ManagedAgentId,
    OperatorId,
    RequestId,
    RunId,
    SessionId,
    SummaryId,
    TenantId,
    UploadId,
    UserId,
    WorkspaceId,
)
from spass.core.jobs import WorkKind
from spass.core.time import Timestamp

_SEQ_DIGITS = 10
_PART_DIGITS = 6
_FRAME_DIGITS = 10
_VERSION_DIGITS = 10

TURN_PREFIX = "TURN#"
STREAM_PREFIX = "STREAM#"
USER_SESSION_PREFIX = "SES#"
SESSION_APPROVAL_PREFIX = "APR#"
NOTE_PREFIX = "NOTE#"
MESSAGE_PREFIX = "MSG#"
RUN_PREFIX = "RUN#"
USER_MANAGED_PREFIX = "AGT#"
PENDING_RUN_PREFIX = "RUN#"
PENDING_SCHEDULE_PREFIX = "SCHEDULE#"
PENDING_DELETION_PREFIX = "DELETE#"
RAG_INDEX_PREFIX = "IDX#"
RAG_MERGE_PREFIX = "MERGE#"
UPLOAD_PREFIX = "UP#"
WORKSPACE_PREFIX = "WS#"
DELETED_GENERATION_PREFIX = "GONE#"
VERSION_PREFIX = "V#"
BACKEND_PREFIX = "B#"


class Key(NamedTuple):
    pk: str
    sk: str


def tenant_prefix(tenant: TenantId) -> str:
    return f"T#{tenant}#"


def session_partition(tenant: TenantId, session: SessionId) -> str:
    return f"{tenant_prefix(tenant)}SES#{session}"


def session_head(tenant: TenantId, session: SessionId) -> Key:
    return Key(session_partition(tenant, session), "HEAD")


def session_turn(tenant: TenantId, session: SessionId, first_seq: int) -> Key:
    """Return the key of a turn. It contains the ``seq`` of its first message, padded so that keys sort as numbers."""
    return Key(session_partition(tenant, session), f"{TURN_PREFIX}{first_seq:0{_SEQ_DIGITS}d}")


def session_summary(tenant: TenantId, session: SessionId, summary: SummaryId) -> Key:
    """Return the key of the summary that a session begins with. It is in the session's partition and is deleted with it."""
    return Key(session_partition(tenant, session), f"SUM#{summary}")


def stream_head(tenant: TenantId, digest: str) -> Key:
    """Return the key of the head of a stream. ``digest`` is the SHA-256 (hex) of the stream's name."""
    return Key(f"{tenant_prefix(tenant)}STREAM#{digest}", "HEAD")


def stream_chunk_prefix(digest: str, attempt: int) -> str:
    """Return the prefix of the sort keys of an attempt's chunks, which are in the partition of its session."""
    return f"{STREAM_PREFIX}{digest}#{attempt}#"


def stream_chunk(tenant: TenantId, session: SessionId, digest: str, attempt: int, n: int) -> Key:
    """Return the key of a chunk. It contains the number of its first frame, padded so that keys sort as numbers."""
    return Key(session_partition(tenant, session), f"{stream_chunk_prefix(digest, attempt)}{n:0{_FRAME_DIGITS}d}")


class StreamChunkKey(NamedTuple):
    """The parts of a chunk's sort key. ``n`` is the number of its first frame."""

    digest: str
    attempt: int
    n: int


def parse_stream_chunk(sk: str) -> StreamChunkKey | None:
    """Return the parts of a chunk's sort key, or None if another kind of item has this sort key."""
    if not sk.startswith(STREAM_PREFIX):
        return None
    digest, attempt, n = sk.removeprefix(STREAM_PREFIX).split("#")
    return StreamChunkKey(digest, int(attempt), int(n))


def user_sessions_partition(tenant: TenantId, user: UserId, agent: AgentName) -> str:
    return f"{tenant_prefix(tenant)}USER#{user}#AGENT#{agent}"


def user_session(tenant: TenantId, user: UserId, agent: AgentName, session: SessionId) -> Key:
    return Key(user_sessions_partition(tenant, user, agent), f"{USER_SESSION_PREFIX}{session}")


def session_name(tenant: TenantId, user: UserId, agent: AgentName, name: str) -> Key:
    """Return the key of the item with the id of the session to which the user's client gave ``name``."""
    return Key(user_sessions_partition(tenant, user, agent), f"NAME#{name}")


def approvals_partition(tenant: TenantId, user: UserId) -> str:
    return f"{tenant_prefix(tenant)}APR#{user}"


def approval(tenant: TenantId, user: UserId, approval: ApprovalId) -> Key:
    return Key(approvals_partition(tenant, user), approval)


def session_approval(tenant: TenantId, session: SessionId, approval: ApprovalId) -> Key:
    """Return the key of the item that names an approval of a session's call, so that it is deleted with the session."""
    return Key(session_partition(tenant, session), f"{SESSION_APPROVAL_PREFIX}{approval}")


def operator_partition(tenant: TenantId, user: UserId, operator: OperatorId) -> str:
    return f"{tenant_prefix(tenant)}OPER#{user}#{operator}"


def operator_state(tenant: TenantId, user: UserId, operator: OperatorId) -> Key:
    """Return the key of the item with an operator's state and the id of its session."""
    return Key(operator_partition(tenant, user, operator), "STATE")


def operator_note(tenant: TenantId, user: UserId, operator: OperatorId, digest: str) -> Key:
    """Return the key of a note. ``digest`` is the SHA-256 (hex) of the note's own key."""
    return Key(operator_partition(tenant, user, operator), f"{NOTE_PREFIX}{digest}")


def managed_partition(tenant: TenantId, agent: ManagedAgentId) -> str:
    return f"{tenant_prefix(tenant)}MAGENT#{agent}"


def managed_agent(tenant: TenantId, agent: ManagedAgentId) -> Key:
    return Key(managed_partition(tenant, agent), "AGENT")


def managed_message(tenant: TenantId, agent: ManagedAgentId, seq: int) -> Key:
    """Return the key of a message of an agent's mailbox. ``seq`` is padded so that keys sort as numbers."""
    return Key(managed_partition(tenant, agent), f"{MESSAGE_PREFIX}{seq:0{_SEQ_DIGITS}d}")


def managed_run(tenant: TenantId, agent: ManagedAgentId, run: RunId) -> Key:
    return Key(managed_partition(tenant, agent), f"{RUN_PREFIX}{run}")


def user_managed_partition(tenant: TenantId, user: UserId) -> str:
    return f"{tenant_prefix(tenant)}USER#{user}#MAGENTS"


def user_managed(tenant: TenantId, user: UserId, agent: ManagedAgentId) -> Key:
    return Key(user_managed_partition(tenant, user), f"{USER_MANAGED_PREFIX}{agent}")


def pending_partition(tenant: TenantId) -> str:
    """Return the partition of the items from which the hourly sweep learns of pending work: runs, schedules and deletions."""
    return f"{tenant_prefix(tenant)}OPENWORK"


def pending_run(tenant: TenantId, agent: ManagedAgentId, run: RunId) -> Key:
    return Key(pending_partition(tenant), f"{PENDING_RUN_PREFIX}{agent}#{run}")


def pending_schedule(tenant: TenantId, agent: ManagedAgentId) -> Key:
    return Key(pending_partition(tenant), f"{PENDING_SCHEDULE_PREFIX}{agent}")


def pending_deletion(tenant: TenantId, agent: ManagedAgentId) -> Key:
    return Key(pending_partition(tenant), f"{PENDING_DELETION_PREFIX}{agent}")


def job(tenant: TenantId, job_id: JobId) -> Key:
    return Key(f"{tenant_prefix(tenant)}JOB#{job_id}", "JOB")


def job_draft(tenant: TenantId, job: JobId) -> Key:
    """Return the key of a job's result that is not committed yet."""
    return Key(f"{tenant_prefix(tenant)}JOB#{job}", "DRAFT")


def idempotency(tenant: TenantId, digest: str) -> Key:
    return Key(f"{tenant_prefix(tenant)}IDEM#{digest}", "IDEM")


def commit_marker(tenant: TenantId, name: str) -> Key:
    """Return the key of the marker that a transaction puts: it exists if and only if the transaction took effect."""
    return Key(f"{tenant_prefix(tenant)}COMMIT#{name}", "COMMIT")


def rag_partition(tenant: TenantId) -> str:
    return f"{tenant_prefix(tenant)}RAG"


def rag_manifest(tenant: TenantId, index: IndexId) -> Key:
    return Key(rag_partition(tenant), f"{RAG_INDEX_PREFIX}{index}")


def rag_merge(tenant: TenantId, index: IndexId) -> Key:
    return Key(rag_partition(tenant), f"{RAG_MERGE_PREFIX}{index}")


def uploads_partition(tenant: TenantId, index: IndexId) -> str:
    return f"{tenant_prefix(tenant)}UPLOAD#{index}"


def upload(tenant: TenantId, index: IndexId, upload_id: UploadId) -> Key:
    return Key(uploads_partition(tenant, index), f"{UPLOAD_PREFIX}{upload_id}")


def upload_part_prefix(upload: UploadId) -> str:
    return f"PART#{upload}#"


def upload_part(tenant: TenantId, index: IndexId, upload: UploadId, number: int) -> Key:
    """Return the key of one part of an upload that is ingested in parts. ``number`` counts from 0."""
    return Key(uploads_partition(tenant, index), f"{upload_part_prefix(upload)}{number:0{_PART_DIGITS}d}")


def upload_newest(tenant: TenantId, index: IndexId, digest: str) -> Key:
    """Return the key of the item with the newest S3 sequencer of an object, by the SHA-256 of its key. A sequencer orders the
    events of one object."""
    return Key(uploads_partition(tenant, index), f"NEWEST#{digest}")


def large_upload(tenant: TenantId, index: IndexId, upload: UploadId) -> Key:
    """Return the key of a large file during its ingest. The partition contains the large files of all the tenant's indexes."""
    return Key(f"{tenant_prefix(tenant)}LARGE", f"{index}#{upload}")


def workspaces_partition(tenant: TenantId) -> str:
    return f"{tenant_prefix(tenant)}WS"


def workspace(tenant: TenantId, workspace_id: WorkspaceId) -> Key:
    return Key(workspaces_partition(tenant), f"{WORKSPACE_PREFIX}{workspace_id}")


def deleted_generation(tenant: TenantId, workspace_id: WorkspaceId, generation: str) -> Key:
    """Return the key of the item that tells the sweep to remove a deleted generation of a workspace."""
    return Key(workspaces_partition(tenant), f"{DELETED_GENERATION_PREFIX}{workspace_id}#{generation}")


def workspace_versions_partition(tenant: TenantId, workspace_id: WorkspaceId, generation: str) -> str:
    return f"{tenant_prefix(tenant)}WS#{workspace_id}#{generation}"


def workspace_version(tenant: TenantId, workspace_id: WorkspaceId, generation: str, number: int) -> Key:
    """Return the key of a version. It contains the version's number, padded so that keys sort as numbers."""
    partition = workspace_versions_partition(tenant, workspace_id, generation)
    return Key(partition, f"{VERSION_PREFIX}{number:0{_VERSION_DIGITS}d}")


def tenant_config(tenant: TenantId) -> Key:
    return Key(f"{tenant_prefix(tenant)}CONFIG", "CONFIG")


def used_confirm_token(tenant: TenantId, digest: str) -> Key:
    """Return the key of the item that marks a confirm token as used. ``digest`` is the SHA-256 of the token."""
    return Key(f"{tenant_prefix(tenant)}CONFIRM#{digest}", "CONFIRM")


def confirm_secret(tenant: TenantId) -> Key:
    return Key(f"{tenant_prefix(tenant)}CONFIRM", "KEY")


def audit_partition(tenant: TenantId, outer_request: RequestId) -> str:
    return f"{tenant_prefix(tenant)}AUDIT#{outer_request}"


def audit(tenant: TenantId, outer_request: RequestId, at: Timestamp, request: RequestId) -> Key:
    """Return the key of the audit record of ``request``. The records of ``outer_request``, the client's request that caused it,
    are in one partition, sorted by time."""
    return Key(audit_partition(tenant, outer_request), f"{at}#{request}")


def tenant_limit(tenant: TenantId, shard: int) -> Key:
    return Key(f"{tenant_prefix(tenant)}LIMIT#{shard}", "LIMIT")


def followers_limit(tenant: TenantId, shard: int) -> Key:
    """Return the key of one shard of the limit of the clients that follow a tenant's streams."""
    return Key(f"{tenant_prefix(tenant)}LIMIT#FOLLOWERS#{shard}", "LIMIT")


def turns_limit(tenant: TenantId, shard: int) -> Key:
    """Return the key of one shard of the limit of the requests of a tenant that call models, embed or run code."""
    return Key(f"{tenant_prefix(tenant)}LIMIT#TURNS#{shard}", "LIMIT")


def schedules_limit(tenant: TenantId) -> Key:
    """Return the key of the item that each transaction changes that stores a schedule of a tenant."""
    return Key(f"{tenant_prefix(tenant)}LIMIT#SCHEDULES", "LIMIT")


def usage_partition(tenant: TenantId, month: str) -> str:
    """Return the partition of a tenant's usage in a ``month`` (``2026-04``)."""
    return f"{tenant_prefix(tenant)}USAGE#{month}"


def usage(tenant: TenantId, day: str, agent: str, model: str, user: str, shard: int) -> Key:
    """Return the key of a row of usage on a ``day`` (``2026-04-30``). ``agent`` and ``user`` are empty if there is none. They
    contain no ``#``, so two rows never have the same key, even if the model's name contains one."""
    return Key(usage_partition(tenant, day[:7]), f"{day}#{agent}#{model}#{user}#{shard}")


def work_partition(kind: WorkKind) -> str:
    """Return the partition with one item for each tenant that has had work of this kind. No shard of a limit has such a key."""
    return f"{BACKEND_PREFIX}WORK#{kind}"


def work_places(kind: WorkKind, tenant: TenantId) -> Key:
    return Key(work_partition(kind), tenant)


def waiting_partition(tenant: TenantId, kind: WorkKind) -> str:
    return f"{tenant_prefix(tenant)}WAIT#{kind}"


def waiting_work(tenant: TenantId, kind: WorkKind, place: str) -> Key:
    """Return the key of a piece of work that waits. ``place`` sorts the line."""
    return Key(waiting_partition(tenant, kind), place)


def backend_limit(backend: str, shard: int) -> Key:
    """Return the key of one shard of a backend's limit, which all tenants share."""
    return Key(f"{BACKEND_PREFIX}{backend}#{shard}", "LIMIT")
