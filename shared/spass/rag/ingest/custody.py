"""In whose hands an upload is, and what becomes of it: every change of an upload's record but its progress.

A worker holds a record as a lease, so that a file whose event is delivered twice is not embedded twice. That nothing is
*stored* twice does not hang on it: each batch takes effect only together with its part's position (see ``progress``).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.leases import LEASE_SECONDS, LeaseLost
from spass.aws.table import TTL, Condition, ConditionFailed, Update
from spass.core.errors import StorageUnavailable
from spass.core.ids import IndexId, UploadId, random_suffix
from spass.core.time import now, now_s
from spass.rag.ingest.plan import Plan
from spass.rag.ingest.record import KEEP_SECONDS, MAX_ERRORS, Status, UploadError, UploadRecord, record_of, updated
from spass.rag.ingest.uploaded_file import UploadedFile

_ACTIVE: Final = (Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker that takes uploads for the queue's ``message``. Every receiver has an ``owner`` of its own."""

    message: str
    owner: str = field(default_factory=random_suffix)


class Standing(Enum):
    """Why an upload cannot be taken."""

    ENDED = auto()  # it is done, or has failed for good
    IN_HAND = auto()  # somebody works on it, for another message, which comes back if they die
    HELD_FOR_THIS = auto()  # somebody has held it for this very message not long ago


async def take_put(store: TenantStore, file: UploadedFile, hand: Hand) -> UploadRecord | Standing:
    """Take the upload that ``file`` is: the one a form was given out for, or, where that has another object by now (a form can be
    used twice) or there was none, one of its own. Each (key, revision) is one upload, however often it is taken."""
    if file.form_upload is not None:
        waiting: dict[str, Value] = {":waiting": Status.WAITING.value, ":key": file.key}
        waits = Condition("(#status = :waiting AND #key = :key)", _names("status", "key"), waiting)
        taken = await _take_put(store, file, file.form_upload, hand, waits)
        if taken is not None:
            return taken
    taken = await _take_put(store, file, file.own_upload, hand, Condition("attribute_not_exists(pk)"))
    return taken or Standing.ENDED


async def take(store: TenantStore, index: IndexId, upload: UploadId, hand: Hand) -> UploadRecord | Standing:
    """Take an upload that was begun."""
    free = _takeable(hand)
    condition = Condition(f"attribute_exists(pk) AND {free.expression}", free.names, free.values)
    try:
        return await _take(store, index, upload, hand, {}, {}, condition)
    except ConditionFailed as failure:
        return _standing(failure.item, hand)


async def _take_put(
    store: TenantStore, file: UploadedFile, upload: UploadId, hand: Hand, or_else: Condition
) -> UploadRecord | Standing | None:
    """None when the upload is that of another object."""
    free = _takeable(hand)
    condition = Condition(
        f"{or_else.expression} OR (#revision = :revision AND {free.expression})",
        {**free.names, **or_else.names, **_names("revision")},
        {**free.values, **or_else.values},
    )
    always: dict[str, Value] = {
        "index": file.index,
        "key": file.key,
        "revision": file.revision,
        "version": file.version,
        "filename": file.filename,
    }
    if file.sequencer:
        always["sequencer"] = file.sequencer
    try:
        return await _take(store, file.index, upload, hand, always, {"created_at": now()}, condition)
    except ConditionFailed as failure:
        item = failure.item
        if item is None or (item.get("key"), item.get("revision")) != (file.key, file.revision):
            return None
        return _standing(item, hand)


async def _take(
    store: TenantStore,
    index: IndexId,
    upload: UploadId,
    hand: Hand,
    always: Mapping[str, Value],
    once: Mapping[str, Value],
    condition: Condition,
) -> UploadRecord:
    second = now_s()
    always = {
        **always,
        "status": Status.RUNNING.value,
        "owner": hand.owner,
        "message": hand.message,
        "lease_until": second + LEASE_SECONDS,
        "touched": second,
        TTL: second + KEEP_SECONDS,
    }
    sets = [f"#{name} = :{name}" for name in always] + [f"#{name} = if_not_exists(#{name}, :{name})" for name in once]
    forgotten = ("errors", "resumable", "by_machine", "finished_at")
    expression = f"SET {', '.join(sets)} REMOVE {', '.join(f'#{name}' for name in forgotten)}"
    values = {f":{name}": value for name, value in (*always.items(), *once.items())}
    names = _names(*always, *once, *forgotten)
    write = Update(keys.upload(store.tenant, index, upload), expression, names, values, condition)
    return record_of(await updated(store, write))


def _takeable(hand: Hand) -> Condition:
    """Begun and not ended, and in nobody's hands: of a lease that ran out the owner is taken for dead."""
    return Condition(
        "(#status IN (:queued, :running) AND attribute_not_exists(#by_machine) OR #status = :failed AND #resumable = :true)"
        " AND (attribute_not_exists(#lease_until) OR #lease_until <= :now OR #owner = :owner)",
        _names("status", "by_machine", "resumable", "lease_until", "owner"),
        {**_statuses(*_ACTIVE, Status.FAILED), ":true": True, ":now": now_s(), ":owner": hand.owner},
    )


def _standing(item: Item | None, hand: Hand) -> Standing:
    if item is None:
        return Standing.ENDED
    record = record_of(item)
    if record.ended:
        return Standing.ENDED
    return Standing.HELD_FOR_THIS if record.message == hand.message and not record.by_machine else Standing.IN_HAND


async def renew(store: TenantStore, record: UploadRecord) -> None:
    """Hold the upload for another minute.

    Raises:
        ConditionFailed: it is in other hands, or at its end.
    """
    second = now_s()
    await _change(store, record, {"lease_until": second + LEASE_SECONDS, "touched": second})


async def set_planned(store: TenantStore, record: UploadRecord, size: int, plan: Plan, generation: str) -> UploadRecord:
    """The file of ``size`` bytes has been surveyed, and its parts are put; it goes into the index's life ``generation``, if
    there is one yet.

    Raises:
        LeaseLost: it is in other hands.
    """
    known: dict[str, Value] = {
        "bytes_total": size,
        "parts": len(plan.parts),
        "kind": plan.kind.value,
        "columns": list(plan.columns),
    }
    if generation:
        known["generation"] = generation
    return await _change_or_lose(store, record, known)


async def give_to_machine(store: TenantStore, record: UploadRecord) -> None:
    """The state machine works on it now: nobody else's turn until that fails."""
    changes: dict[str, Value] = {"by_machine": True, "execution": record.machine_failures}
    await _change_or_lose(store, record, changes, gone=("lease_until",))


async def put_back(store: TenantStore, record: UploadRecord) -> None:
    """Let go of an upload that is not at its end: whoever is told to goes on."""
    try:
        await _change(store, record, {"status": Status.QUEUED.value}, gone=("owner", "lease_until", "message"))
    except ConditionFailed:
        return


async def note_trouble(store: TenantStore, record: UploadRecord, trouble: UploadError) -> None:
    """Remember what stopped a step of the state machine, for the case that it gives up."""
    with suppress(ConditionFailed, StorageUnavailable):
        await _change(store, record, {"trouble": trouble.attributes()})


async def end_failed(
    store: TenantStore,
    record: UploadRecord,
    error: UploadError,
    others: Sequence[UploadError],
    *,
    resumable: bool,
    by_machine: bool = False,
    execution_ended: bool = False,
) -> None:
    """Fail the upload if it is where ``record`` says: in the same hands, and not ended. When the state machine had it, who goes
    on starts another execution; what is left of one that says so itself (``execution_ended``) then changes nothing more."""
    changes: dict[str, Value] = {"status": Status.FAILED.value, "finished_at": now(), TTL: now_s() + KEEP_SECONDS}
    if resumable:
        changes["resumable"] = True
    if by_machine:
        changes["machine_failures"] = record.machine_failures + 1
    if execution_ended:
        changes["execution"] = record.machine_failures + 1
    errors = [kept.attributes() for kept in (error, *others)[:MAX_ERRORS]]
    gone = ("lease_until", "message", "by_machine")
    try:
        await _change(store, record, {**changes, "errors": errors}, gone=gone)
    except ConditionFailed:
        return


async def end_finished(store: TenantStore, record: UploadRecord, errors: Sequence[UploadError]) -> None:
    """End an upload all of whose parts are done, whoever they were done by."""
    status = Status.SUCCEEDED if record.ingested or not record.failed else Status.FAILED
    changes: dict[str, Value] = {
        "status": status.value,
        "finished_at": now(),
        "bytes_done": record.bytes_total,
        "errors": [error.attributes() for error in errors[:MAX_ERRORS]],
        TTL: now_s() + KEEP_SECONDS,
    }
    all_done = Condition("#parts_done = #parts", _names("parts_done", "parts"))
    try:
        await _change(store, record, changes, gone=("owner", "lease_until", "message", "by_machine"), still=all_done)
    except ConditionFailed:
        return


async def revive(store: TenantStore, record: UploadRecord, execution: int) -> UploadRecord:
    """Let this ``execution`` of the state machine go on with an upload that was taken for abandoned, or that the worker which
    started it put back, as it could not learn that it had.

    Raises:
        LeaseLost: it is in other hands, or at its end, or a later execution's.
    """
    changes: dict[str, Value] = {"status": Status.RUNNING.value, "by_machine": True, "touched": now_s(), "execution": execution}
    same = _in_hand_as(record)
    still = Condition(
        f"{same.expression} AND (attribute_not_exists(#execution) OR #execution <= :execution)",
        {**same.names, **_names("execution")},
        {**same.values, ":execution": execution},
    )
    of = (Status.QUEUED, Status.FAILED)
    return await _change_or_lose(store, record, changes, gone=("errors", "resumable"), of=of, still=still)


async def _change_or_lose(
    store: TenantStore,
    record: UploadRecord,
    changes: Mapping[str, Value],
    *,
    gone: Sequence[str] = (),
    of: Sequence[Status] = _ACTIVE,
    still: Condition | None = None,
) -> UploadRecord:
    try:
        return await _change(store, record, changes, gone=gone, of=of, still=still)
    except ConditionFailed:
        raise LeaseLost("Somebody else works on this upload.", retry_after=1) from None


async def _change(
    store: TenantStore,
    record: UploadRecord,
    changes: Mapping[str, Value],
    *,
    gone: Sequence[str] = (),
    of: Sequence[Status] = _ACTIVE,
    still: Condition | None = None,
) -> UploadRecord:
    """Change the record while its status is one ``of`` these and it is ``still`` so: by default, in the hands of its owner."""
    still = still or _in_hand_as(record)
    expression = "SET " + ", ".join(f"#{name} = :{name}_" for name in changes)
    if gone:
        expression += " REMOVE " + ", ".join(f"#{name}" for name in gone)
    statuses = _statuses(*of)
    condition = Condition(
        f"#status IN ({', '.join(statuses)}) AND {still.expression}",
        {**still.names, **_names("status")},
        {**still.values, **statuses},
    )
    values = {f":{name}_": value for name, value in changes.items()}
    key = keys.upload(store.tenant, record.index, record.id)
    write = Update(key, expression, _names(*changes, *gone), values, condition)
    return record_of(await updated(store, write))


def _in_hand_as(record: UploadRecord) -> Condition:
    if not record.owner:
        return Condition("attribute_not_exists(#owner)", _names("owner"))
    return Condition("#owner = :owner", _names("owner"), {":owner": record.owner})


def _statuses(*statuses: Status) -> dict[str, Value]:
    return {f":{status}": status.value for status in statuses}


def _names(*attributes: str) -> dict[str, str]:
    return {f"#{name}": name for name in attributes}
