"""Commit a compaction in one transaction.

The transaction requires that the source is still held by the owner of the compaction and has not grown since it was read. Kept
messages are copied into the successor. All messages of the source stay in the source, unchanged.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spass.aws import keys
from spass.aws.attributes import Value
from spass.aws.clients import TenantStore
from spass.aws.codec import encode
from spass.aws.objects import ObjectMissing
from spass.aws.table import TransactionFailed
from spass.aws.writes import ITEM_ABSENT, Absent, Equals, Put, Update, Write
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
from spass.sessions.compaction.summary_store import read_summary, storable_text
from spass.sessions.compaction.types import CompactionPlan, CompactionResult, Summary, SummaryRecord, summary_message
from spass.sessions.hold import held_by, is_deleted, release_hold
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body, stored_overflow_key
from spass.sessions.session import Hold, Session, decode_session


class CompactionNotStarted(StorageUnavailable):
    """The bucket refused the successor's first turn. Nothing was committed, and the source is still held."""


@dataclass(frozen=True, slots=True)
class _CommitAttempt:
    """One compaction before its outcome is known."""

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
        SummaryFailed: the summary is too large to be kept.
        CompactionNotStarted: the bucket refused the first turn.
        StorageUnavailable: the outcome is unknown; the hold may be lost.
    """
    _check_plan(source, live, plan)
    at_wire = timestamp(at)
    record = _record(plan, source, summary, at_wire)
    first = _first_item(live, plan, record)
    successor = _successor(source, plan, first, at_wire, hold)
    attempt = _CommitAttempt(store, source, plan, owner, CompactionResult(successor, first, record))
    body = await _store_first_item(attempt)
    writes = [
        *_writes(attempt, Put(keys.session_turn(store.tenant, successor.id, 1), body, ITEM_ABSENT)),
        *with_effect(attempt.result),
    ]
    end = await _transact(attempt, writes)
    if (key := stored_overflow_key(dict(body))) and _cannot_commit_later(end, first):
        with suppress(StorageUnavailable):
            await store.objects.delete([key])
    if isinstance(end, SpassError):
        raise end
    return end


async def _store_first_item(attempt: _CommitAttempt) -> dict[str, Value]:
    result = attempt.result
    try:
        return await store_body(attempt.store, result.session.id, result.first)
    except StorageUnavailable as error:
        raise CompactionNotStarted(error.message, retry_after=error.retry_after) from error


async def _transact(attempt: _CommitAttempt, writes: Sequence[Write]) -> CompactionResult | SpassError:
    """Make the writes and return the result, or the error that stands for it.

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
        end = await _read_outcome(attempt)
        if isinstance(end, SessionBusy):
            return StorageUnavailable("The compaction could not be recorded; try again.", retry_after=1)
        return end
    return attempt.result


def _cannot_commit_later(end: CompactionResult | SpassError, first: TurnRecord) -> bool:
    """Return whether an attempt with ``first`` that is still in flight can no longer commit, even if a retried job holds the
    session again. If it can, its body stays in the bucket; bodies that are never committed are swept after a day.
    """
    if isinstance(end, SpassError):
        return isinstance(end, SessionArchived | SessionNotFound)
    return end.first.id != first.id


def _check_plan(source: Session, live: Sequence[TurnRecord], plan: CompactionPlan) -> None:
    """Raise an error unless ``live`` has every live message and the plan divides them: no message may get lost."""
    numbers = [stored.seq for turn in live for stored in turn.messages]
    if numbers != list(range(source.compacted_before, source.next_seq)):
        raise SessionBusy("Another request changed this session while it was read; try again.", retry_after=1)
    if plan.source != source.id or not source.compacted_before < plan.kept_from <= source.next_seq:
        raise InternalError("A compaction's plan does not fit its session.")


def _record(plan: CompactionPlan, source: Session, summary: Summary, at: Timestamp) -> SummaryRecord:
    return SummaryRecord(
        plan.summary,
        source.id,
        plan.successor,
        storable_text(summary.text),
        summary.model,
        at,
        source.compacted_before,
        plan.kept_from - 1,
    )


def _first_item(live: Sequence[TurnRecord], plan: CompactionPlan, record: SummaryRecord) -> TurnRecord:
    """The summary and what is kept, as one turn. Its id is its own, as any turn's: where another process commits the same plan,
    neither writes over the body that the other put into the bucket.
    """
    opening = StoredMessage(MessageId(new_id("msg")), 1, record.created_at, Message(Role.ASSISTANT, summary_message(record)))
    kept = [stored for turn in live for stored in turn.messages if stored.seq >= plan.kept_from]
    messages = (opening, *(replace(stored, id=MessageId(new_id("msg")), seq=seq) for seq, stored in enumerate(kept, 2)))
    calls = {call.id for stored in kept for call in stored.message.tool_calls}
    runs = tuple(run for turn in live if turn.next_seq > plan.kept_from for run in turn.tools if run.call_id in calls)
    return TurnRecord(new_id("turn"), messages, TokenUsage(), 0, FinishReason.STOP, runs)


def _successor(source: Session, plan: CompactionPlan, first: TurnRecord, at: Timestamp, hold: Hold | None) -> Session:
    return Session(
        plan.successor,
        source.agent,
        source.user,
        source.title,
        at,
        at,
        source.compact_strategy,
        source.compact_keep_last_n,
        source.compact_observation_mask,
        next_seq=first.next_seq,
        parent_session_id=source.id,
        summary_id=plan.summary,
        hold=hold,
    )


def _writes(attempt: _CommitAttempt, first: Put) -> list[Write]:
    tenant, source, plan, successor = attempt.store.tenant, attempt.source, attempt.plan, attempt.result.session
    at = successor.created_at
    archived = replace(
        source,
        updated_at=at,
        archived_at=at,
        archived_by=attempt.owner,
        successor_session_id=successor.id,
        compacted_before=plan.kept_from,
        hold=None,
    )
    unchanged = held_by(attempt.owner) & Equals("next_seq", source.next_seq) & Absent("archived_at") & Absent("deleted_at")
    return [
        Update(
            keys.session_head(tenant, source.id),
            set={
                "archived_at": at,
                "updated_at": at,
                "archived_by": attempt.owner,
                "successor_session_id": successor.id,
                "compacted_before": plan.kept_from,
            },
            remove=("hold",),
            when=unchanged,
        ),
        Put(keys.session_head(tenant, successor.id), successor.attributes(), ITEM_ABSENT),
        first,
        Put(keys.session_summary(tenant, successor.id, plan.summary), encode(attempt.result.summary), ITEM_ABSENT),
        Put(keys.user_session(tenant, source.user, source.agent, source.id), archived.entry()),
        Put(keys.user_session(tenant, source.user, source.agent, successor.id), successor.entry()),
    ]


async def _read_outcome(attempt: _CommitAttempt) -> CompactionResult | SpassError:
    """Read the outcome from the table: return the committed compaction, or the error that explains why there is none.

    Raises:
        StorageUnavailable: we cannot know.
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


async def _committed_result(attempt: _CommitAttempt) -> CompactionResult:
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
