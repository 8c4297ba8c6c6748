"""Record every model and tool call: caller, model or tool, status and cost, but no text."""

import os
from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from spass.core.codec import encode_record
from spass.core.cost import NO_COST, Cost, decimal_text
from spass.core.errors import InternalError, SpassError, StorageUnavailable
from spass.core.ids import AgentName, RequestId, SessionId, UserId, new_id
from spass.core.jobs import AccountCall
from spass.core.messages import NO_TOKENS, Json, TokenUsage
from spass.core.time import Timestamp, epoch_s, now
from spass.metering import usage
from spass.redaction.log import write_event, write_line
from spass.store import keys
from spass.store.table import TTL, ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put

KEEP_SECONDS: Final = 90 * 24 * 3600

OK: Final = "ok"
CANCELLED: Final = "cancelled"
FAILED: Final = "internal_error"

NOT_STORED: Final = "audit_not_stored"
"""The event, and the metric, of a record that neither the table nor the queue of jobs has."""

SHARDS: Final = 16
"""Rows that count the calls of one agent, model and user on one day: DynamoDB cancels concurrent transactions on a row."""


def status_of(error: BaseException) -> str:
    if isinstance(error, SpassError):
        return error.code
    return CANCELLED if isinstance(error, CancelledError) else FAILED


class CallKind(StrEnum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One call.

    ``outer_request_id`` is the client's request, the root of the tree of calls. ``parent_request_id`` is the call that made
    this one, or the client's request. ``origin_request_id`` is the request to another gateway that, according to the client, led
    to this one. ``latency_ms`` is the duration of the call. ``status`` is ``ok``, ``cancelled`` or the code of an error.
    """

    request_id: RequestId
    outer_request_id: RequestId
    parent_request_id: RequestId
    origin_request_id: RequestId | None
    at: Timestamp
    kind: CallKind
    status: str
    latency_ms: int
    token_id: str
    user: UserId | None
    agent: AgentName | None
    session: SessionId | None
    route: str
    tool: str | None = None
    model: str | None = None
    backend: str | None = None
    attempts: int = 0
    usage: TokenUsage = NO_TOKENS
    usage_estimated: bool = False
    cost: Cost = NO_COST
    finish_reason: str | None = None


class ShardChooser:
    """Choose the rows of one process: always the same one, so that there are few rows, and the next ones for concurrent
    writes."""

    def __init__(self) -> None:
        self._in_use: set[int] = set()

    @cached_property
    def _preferred(self) -> int:
        return os.urandom(1)[0] % SHARDS

    @contextmanager
    def choose(self) -> Iterator[int]:
        """Yield the number of a row to which this process is not writing, or a random one if it is writing to all of them."""
        in_order = ((self._preferred + offset) % SHARDS for offset in range(SHARDS))
        shard = next((shard for shard in in_order if shard not in self._in_use), None)
        if shard is None:
            yield os.urandom(1)[0] % SHARDS
            return
        self._in_use.add(shard)
        try:
            yield shard
        finally:
            self._in_use.discard(shard)


_shards: Final = ShardChooser()


async def record_call(store: TenantStore, record: AuditRecord) -> None:
    """Store the record of a call that has ended, and log it. Run it shielded, so that every paid call is recorded.

    This does not raise: a record that cannot be stored is sent to the queue of jobs. If that fails too, only the log has it.
    """
    stored = attributes(record)
    write_line({"level": "info", "event": "call", "tenant": store.tenant, **stored})
    try:
        await account(store, stored)
    except (StorageUnavailable, InternalError):
        await _queue_record(store, stored)


async def account(store: TenantStore, record: Mapping[str, str | int]) -> None:
    """Store the attributes of a record for 90 days and count its usage, in one transaction. Repeated calls have no effect. After
    ``StorageUnavailable`` it is unknown whether it was stored."""
    at = Timestamp(str(record["at"]))
    key = keys.audit(store.tenant, RequestId(str(record["outer_request_id"])), at, RequestId(str(record["request_id"])))
    put = Put(key, {**record, TTL: epoch_s(at) + KEEP_SECONDS}, ITEM_ABSENT)
    with _shards.choose() as shard:
        count_usage = usage.usage_update(store.tenant, record, shard)
        with suppress(ConditionFailed, TransactionFailed):  # it is stored already
            if count_usage:
                await store.table.transact([put, count_usage], token=new_id("call"))
            else:
                await store.table.write(put)


async def _queue_record(store: TenantStore, record: Mapping[str, str | int]) -> None:
    ids: dict[str, Json] = {"request_id": record["outer_request_id"], "call": record["request_id"]}
    try:
        await store.jobs.send(AccountCall(store.tenant, record))
        write_event("audit_queued", ids, level="error")
    except (StorageUnavailable, InternalError):
        write_event(NOT_STORED, ids | _loss_metric(), level="error")


def _loss_metric() -> dict[str, Json]:
    """Return the fields that count a lost record in CloudWatch, where an alarm watches it; none without metrics."""
    from spass.metering.embedded_metrics import NAMESPACE_VARIABLE, metric_metadata

    namespace = os.environ.get(NAMESPACE_VARIABLE)
    return {NOT_STORED: 1, "_aws": metric_metadata(namespace, {NOT_STORED: "Count"}, now())} if namespace else {}


def attributes(record: AuditRecord) -> dict[str, str | int]:
    """Return the attributes of the record's item. Empty fields are omitted, and money is text."""
    stored = encode_record(record, without=("usage", "usage_estimated", "cost", *(() if record.attempts else ("attempts",))))
    if record.kind is CallKind.TOOL:
        return stored
    return stored | {
        "prompt_tokens": record.usage.prompt_tokens,
        "completion_tokens": record.usage.completion_tokens,
        **({"usage_estimated": True} if record.usage_estimated else {}),
        "cost_usd": decimal_text(record.cost.usd),
        "cost_eur": decimal_text(record.cost.eur),
        "cost_source": record.cost.source.value,
    }
