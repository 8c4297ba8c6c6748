"""One record for every model and tool call: who called what, how it went and what it cost. Never what was said."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import anyio

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.log import write_line
from spass.aws.table import TTL, Put
from spass.core.cost import Cost
from spass.core.errors import StorageUnavailable
from spass.core.ids import AgentName, RequestId, SessionId, UserId
from spass.core.messages import Json, TokenUsage
from spass.core.time import Timestamp, now, now_s
from spass.metering.cost import decimal_text

KEEP_SECONDS: Final = 90 * 24 * 3600

OK: Final = "ok"
CANCELLED: Final = "cancelled"
FAILED: Final = "internal_error"

_NO_TOKENS: Final = TokenUsage()
_NO_COST: Final = Cost()


class CallKind(StrEnum):
    CHAT = "chat"
    EMBEDDING = "embedding"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One call.

    ``outer_request_id`` is the client's request, the root of the tree of calls; ``parent_request_id`` is what this call was made
    for (the same, unless calls nest deeper); ``origin_request_id`` is a request elsewhere that, so the client says, led here.
    ``latency_ms`` runs from the call's beginning to its end. ``status`` is ``ok``, ``cancelled`` or the code of an error.
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
    usage: TokenUsage = _NO_TOKENS
    usage_estimated: bool = False
    cost: Cost = _NO_COST
    finish_reason: str | None = None


async def write(store: TenantStore, record: AuditRecord) -> None:
    """Keep ``record`` for 90 days. Writing the same record again changes nothing.

    Raises:
        StorageUnavailable: whether it was kept is unknown.
    """
    key = keys.audit(store.tenant, record.outer_request_id, record.at, record.request_id)
    await store.table.write(Put(key, {**attributes(record), TTL: now_s() + KEEP_SECONDS}))


async def keep(store: TenantStore, record: AuditRecord) -> None:
    """As ``write``, at the end of a call. A cancelled caller waits for it, so that no call is paid and unrecorded. A record that
    finds no place takes no result away; it stands in the log then."""
    with anyio.CancelScope(shield=True):
        try:
            await write(store, record)
        except StorageUnavailable:
            line: dict[str, Json] = {"at": now(), "level": "error", "request_id": record.outer_request_id}
            write_line({**line, "event": "audit_not_stored", "record": attributes(record)})


def attributes(record: AuditRecord) -> dict[str, str | int]:
    """The record as an item holds it, without what is empty. Money is text."""
    every: dict[str, str | int | None] = {
        "request_id": record.request_id,
        "outer_request_id": record.outer_request_id,
        "parent_request_id": record.parent_request_id,
        "origin_request_id": record.origin_request_id,
        "at": record.at,
        "kind": record.kind.value,
        "status": record.status,
        "latency_ms": record.latency_ms,
        "token_id": record.token_id,
        "user": record.user,
        "agent": record.agent,
        "session": record.session,
        "route": record.route,
        "tool": record.tool,
        "model": record.model,
        "backend": record.backend,
        "attempts": record.attempts or None,
        "finish_reason": record.finish_reason,
    }
    if record.kind is not CallKind.TOOL:
        every |= {
            "prompt_tokens": record.usage.prompt_tokens,
            "completion_tokens": record.usage.completion_tokens,
            "usage_estimated": record.usage_estimated or None,
            "cost_usd": decimal_text(record.cost.usd),
            "cost_eur": decimal_text(record.cost.eur),
            "cost_source": record.cost.source.value,
        }
    return {name: value for name, value in every.items() if value is not None}
