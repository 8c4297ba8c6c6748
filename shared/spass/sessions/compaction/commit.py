"""Commit a compaction in one transaction.

The transaction requires that the source is still held by the owner of the compaction and has not grown since it was read. Kept
messages are copied into the successor. All messages of the source stay in the source, unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spass.core.errors import (
    InternalError,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    SpassError,
    StorageUnavailable,
)
from spass.core.ids import MessageId, new_id, random_suffix
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import Timestamp, timestamp
from spass.sessions.compaction.plan import CompactionPlan, Summary, SummaryRecord, format_summary_message, read_summary
from spass.sessions.hold import held_by, is_deleted, release_hold
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body, stored_overflow_key
from spass.sessions.session import Hold, Session, decode_session, name_write
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.codec import encode
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Equals, Put, Update, Value, Write


class CompactionNotStarted(StorageUnavailable):
    """The bucket refused the successor's first turn. Nothing was committed, and the source is still held."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The outcome of a compaction: the successor, its first turn record, and the summary."""

    session: Session
    first: TurnRecord
    summary: SummaryRecord


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A compaction before its outcome is known. ``result`` is what it commits."""

    store: TenantStore
    source: Session
    plan: CompactionPlan
    owner: str
    result: CompactionResult


async def commit_compaction(  # one compaction's parts, all named
    store: TenantStore,
    source: Session,
    live: Sequence[TurnRecord],
    plan: CompactionPlan,
    summary: Summary,
    *,
    owner: str,
    at: float,
    hold: Hold | None = None,
    with_effect: Callable[[CompactionResult], Sequence[Write]] = lambda _: (),
) -> CompactionResult:
    """Archive and release ``source``, which ``owner`` holds, and create its successor, held by ``hold``.

    The successor starts with ``summary`` and the messages from ``plan.kept_from`` on. ``live`` are all turns of the source. The
    writes that ``with_effect`` returns join the transaction. ``at`` is in seconds since the epoch.

    A commit of the same plan that took place before, by any process, returns the result that it had then.

    Raises:
        SessionArchived: the source was compacted by another request.
        SessionNotFound: it was deleted.
        SessionBusy: the owner's hold was lost, it grew, or a condition of ``with_effect`` does not hold; nothing took place.
        CompactionNotStarted: the bucket refused the first turn.
        StorageUnavailable: the outcome is unknown; the hold may be lost.
    """
    _check_plan(source, live, plan)
    attempt = _Attempt(store, source, plan, owner, _result(source, live, plan, summary, timestamp(at), hold))
    first = attempt.result.first
    try:
        body = await store_body(store, plan.successor, first)
    except StorageUnavailable as error:
        raise CompactionNotStarted(error.message, retry_after=error.retry_after) from error
    outcome = await _transact(attempt, [*_writes(attempt, body), *with_effect(attempt.result)])
    if (key := stored_overflow_key(dict(body))) and _cannot_commit_later(outcome, first):
        with suppress(StorageUnavailable):
            await store.objects.delete([key])
    if isinstance(outcome, SpassError):
        raise outcome
    return outcome


async def _transact(attempt: _Attempt, writes: Sequence[Write]) -> CompactionResult | SpassError:
    """Make the writes. Return the result, or an error if nothing was committed.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    token = random_suffix()
    try:
        await attempt.store.table.transact(writes, token=token)
    except TransactionFailed:
        return await _read_outcome(attempt)
    except StorageUnavailable:
        # An attempt may still be in flight. Without the hold it can no longer take effect, so a read after the release is final.
        await release_hold(attempt.store, attempt.source.id, attempt.owner)
        outcome = await _read_outcome(attempt)
        if isinstance(outcome, SessionBusy):
            return StorageUnavailable("The compaction could not be recorded; try again.", retry_after=1)
        return outcome
    return attempt.result


def _cannot_commit_later(outcome: CompactionResult | SpassError, first: TurnRecord) -> bool:
    """Return whether an attempt with ``first`` that is still in flight can no longer commit, even if a retried job holds the
    session again. If it can, its body must stay in the bucket; bodies that are never committed are swept after a day.
    """
    if isinstance(outcome, SpassError):
        return isinstance(outcome, SessionArchived | SessionNotFound)
    return outcome.first.id != first.id


def _check_plan(source: Session, live: Sequence[TurnRecord], plan: CompactionPlan) -> None:
    """Raise an error unless ``live`` has every live message and the plan divides them: no message may get lost."""
    numbers = [stored.seq for turn in live for stored in turn.messages]
    if numbers != list(range(source.compacted_before, source.next_seq)):
        raise SessionBusy("Another request changed this session while it was read; try again.", retry_after=1)
    if plan.source != source.id or not source.compacted_before < plan.kept_from <= source.next_seq:
        raise InternalError("A compaction's plan does not fit its session.")


def _result(
    source: Session, live: Sequence[TurnRecord], plan: CompactionPlan, summary: Summary, at: Timestamp, hold: Hold | None
) -> CompactionResult:
    covered = (source.compacted_before, plan.kept_from - 1)
    record = SummaryRecord(plan.summary, source.id, plan.successor, summary.text, summary.model, at, *covered)
    first = _first_turn(live, plan, record)
    successor = replace(
        source,
        id=plan.successor,
        created_at=at,
        updated_at=at,
        next_seq=first.next_seq,
        compacted_before=1,
        parent_session_id=source.id,
        summary_id=plan.summary,
        hold=hold,
    )
    return CompactionResult(successor, first, record)


def _first_turn(live: Sequence[TurnRecord], plan: CompactionPlan, record: SummaryRecord) -> TurnRecord:
    """Return the summary and the kept messages as one turn. Its id is new in each attempt: if two processes commit the same plan,
    neither overwrites the other's body in the bucket.
    """
    opening = StoredMessage(
        MessageId(new_id("msg")), 1, record.created_at, Message(Role.ASSISTANT, format_summary_message(record))
    )
    kept = [stored for turn in live for stored in turn.messages if stored.seq >= plan.kept_from]
    messages = (opening, *(replace(stored, id=MessageId(new_id("msg")), seq=seq) for seq, stored in enumerate(kept, 2)))
    calls = {call.id for stored in kept for call in stored.message.tool_calls}
    runs = tuple(run for turn in live if turn.next_seq > plan.kept_from for run in turn.tools if run.call_id in calls)
    return TurnRecord(new_id("turn"), messages, TokenUsage(), 0, FinishReason.STOP, runs)


def _writes(attempt: _Attempt, first_body: Mapping[str, Value]) -> list[Write]:
    tenant, source, successor, summary = attempt.store.tenant, attempt.source, attempt.result.session, attempt.result.summary
    archived = replace(
        source,
        updated_at=summary.created_at,
        archived_at=summary.created_at,
        archived_by=attempt.owner,
        successor_session_id=successor.id,
        compacted_before=attempt.plan.kept_from,
        hold=None,
    )
    entry = archived.entry()
    changed = ("updated_at", "archived_at", "archived_by", "successor_session_id", "compacted_before")
    unchanged = held_by(attempt.owner) & Equals("next_seq", source.next_seq) & Absent("archived_at") & Absent("deleted_at")
    return [
        Update(
            keys.session_head(tenant, source.id), set={name: entry[name] for name in changed}, remove=("hold",), when=unchanged
        ),
        Put(keys.session_head(tenant, successor.id), successor.attributes(), ITEM_ABSENT),
        Put(keys.session_turn(tenant, successor.id, 1), first_body, ITEM_ABSENT),
        Put(keys.session_summary(tenant, successor.id, summary.id), encode(summary), ITEM_ABSENT),
        Put(keys.user_session(tenant, source.user, source.agent, source.id), entry),
        Put(keys.user_session(tenant, source.user, source.agent, successor.id), successor.entry()),
        *([name_write(attempt.store, successor, successor.name)] if successor.name is not None else []),
    ]


async def _read_outcome(attempt: _Attempt) -> CompactionResult | SpassError:
    """Read from the table and return the committed compaction, or the error that explains why there is none.

    Raises:
        StorageUnavailable: the outcome stays unknown.
    """
    store, plan = attempt.store, attempt.plan
    head = await store.table.get(keys.session_head(store.tenant, plan.source))
    source = decode_session(head) if head is not None else None
    if source is not None and (source.archived_by, source.successor_session_id) == (attempt.owner, plan.successor):
        return await _committed_result(attempt)
    if source is None or is_deleted(head):
        return SessionNotFound("This session was deleted while it was compacted.")
    if source.archived_at is not None:
        return SessionArchived(
            "This session was compacted. Continue with its successor.",
            details={"successor_session_id": source.successor_session_id},
        )
    return SessionBusy("Another request took this session over; it was not compacted.", retry_after=1)


async def _committed_result(attempt: _Attempt) -> CompactionResult:
    """Return the stored compaction, which another process may have committed with other ids and times. If the successor has been
    deleted since, return this attempt's result."""
    store, plan, result = attempt.store, attempt.plan, attempt.result
    head = await store.table.get(keys.session_head(store.tenant, plan.successor))
    if head is None or is_deleted(head):
        return result
    try:
        turns = await load_turns(store, plan.successor, 1, limit=1)
    except ObjectMissing:
        return result
    record = await read_summary(store, plan.successor, plan.summary)
    return CompactionResult(decode_session(head), turns[0], record) if turns and record is not None else result
