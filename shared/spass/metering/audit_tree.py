"""The audit records of one outer request, as the tree of its calls."""

from collections.abc import Mapping
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.core.cost import CostSource
from spass.core.errors import RequestNotFound
from spass.core.ids import RequestId, TenantId
from spass.metering.audit import CallKind
from spass.tenancy.identity import Caller
from spass.tenancy.response_model import Count, DateTime, DecimalText, ResponseModel

MAX_RECORDS: Final = 5000
"""Records in one answer. Of a request with more, the first are shown."""


class AuditedCall(ResponseModel):
    """One call of a model or a tool, with those that were made for it."""

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


_STORED: Final = tuple(name for name in AuditedCall.model_fields if name not in ("tenant", "calls"))


class Audit(ResponseModel):
    """The calls of one request. `truncated` is true if there were more than are shown."""

    request_id: RequestId
    calls: list[AuditedCall]
    truncated: bool


async def tree(store: TenantStore, caller: Caller, request_id: RequestId) -> Audit:
    """Return the calls that the request led to, each with those that were made for it, in time order. A call whose own parent is
    not there stands below the request itself.

    All calls of a request have the request's user. A caller sees the requests of its own user (without a user: those without
    one); an admin sees all requests of the tenant.

    Raises:
        RequestNotFound: no calls of such a request are recorded, or it is another user's.
        StorageUnavailable: the table does not answer.
    """
    partition = keys.audit_partition(store.tenant, request_id)
    items = await store.table.query(partition, limit=MAX_RECORDS + 1)
    if not items or not (caller.identity.admin or items[0].get("user") == caller.user):
        raise RequestNotFound(
            "No calls of this request are recorded for the user that SPASS-User-Id names. Records are kept for 90 days."
        )
    roots: list[Mapping[str, object]] = []
    below: dict[object, list[Mapping[str, object]]] = {}
    shown = items[:MAX_RECORDS]
    for item in shown:
        below[item["request_id"]] = []
    for item in shown:
        # An item holds what is not empty; a client reads each field, null where there is nothing.
        call = {"tenant": store.tenant, **{name: item.get(name) for name in _STORED}, "calls": below[item["request_id"]]}
        below.get(item["parent_request_id"], roots).append(call)
    return Audit.model_validate({"request_id": request_id, "calls": roots, "truncated": len(items) > MAX_RECORDS})
