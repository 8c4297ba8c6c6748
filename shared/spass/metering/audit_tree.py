"""Return the audit records of one request as the tree of its calls."""

from collections.abc import Mapping
from typing import Final

from spass.core.cost import CostSource
from spass.core.errors import RequestNotFound
from spass.core.ids import RequestId, TenantId
from spass.metering.audit import CallKind
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller
from spass.tenancy.response_model import Count, DateTime, DecimalText, ResponseModel

MAX_RECORDS: Final = 5000
"""The maximum number of records in one answer."""


class AuditedCall(ResponseModel):
    """One call of a model or a tool, with its sub-calls."""

    tenant: TenantId
    request_id: str
    outer_request_id: str
    parent_request_id: str
    origin_request_id: str | None
    at: DateTime
    kind: CallKind
    status: str
    latency_ms: Count
    token_id: str
    user: str | None
    agent: str | None
    session: str | None
    route: str
    tool: str | None
    model: str | None
    backend: str | None
    attempts: Count | None
    finish_reason: str | None
    prompt_tokens: Count | None
    completion_tokens: Count | None
    usage_estimated: bool | None
    cost_usd: DecimalText | None
    cost_eur: DecimalText | None
    cost_source: CostSource | None
    calls: "list[AuditedCall]"


_STORED_FIELDS: Final = tuple(name for name in AuditedCall.model_fields if name not in ("tenant", "calls"))


class Audit(ResponseModel):
    """The calls of one request. `truncated` is true if the request made more calls than the answer lists."""

    request_id: RequestId
    calls: list[AuditedCall]
    truncated: bool


async def tree(store: TenantStore, caller: Caller, request_id: RequestId) -> Audit:
    """Return the calls that the request led to, each with its sub-calls, in time order. A call whose parent is not recorded
    is listed directly below the request.

    All calls of a request have the request's user. An admin sees all requests of the tenant, any other caller those of its own
    user. A caller without a user sees the requests without a user.

    Raises:
        RequestNotFound: no call of this request is recorded, or the request belongs to another user.
    """
    partition = keys.audit_partition(store.tenant, request_id)
    items = await store.table.query(partition, limit=MAX_RECORDS + 1)
    if not items or not (caller.identity.admin or items[0].get("user") == caller.user):
        raise RequestNotFound(
            "No calls of this request are recorded for the user that SPASS-User-Id names. Records are kept for 90 days."
        )
    roots: list[Mapping[str, object]] = []
    records = items[:MAX_RECORDS]
    sub_calls: dict[object, list[Mapping[str, object]]] = {item["request_id"]: [] for item in records}
    for item in records:
        # An item omits empty fields; the answer lists them as null.
        fields = {name: item.get(name) for name in _STORED_FIELDS}
        call = {"tenant": store.tenant, **fields, "calls": sub_calls[item["request_id"]]}
        sub_calls.get(item["parent_request_id"], roots).append(call)
    return Audit.model_validate({"request_id": request_id, "calls": roots, "truncated": len(items) > MAX_RECORDS})
