"""The records of one outer request as the tree that its calls are."""

from typing import Final, cast

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.core.errors import RequestNotFound
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.tenancy.identity import Caller

MAX_RECORDS: Final = 5000
"""Of a request with more the first are shown: an answer has room for no more."""

_FIELDS: Final = (
    *("request_id", "outer_request_id", "parent_request_id", "origin_request_id", "at", "kind", "status", "latency_ms"),
    *("token_id", "user", "agent", "session", "route", "tool", "model", "backend", "attempts", "finish_reason"),
    *("prompt_tokens", "completion_tokens", "usage_estimated", "cost_usd", "cost_eur", "cost_source"),
)
"""What a record may hold. An item holds what is not empty; a client reads each, null where there is nothing."""


async def tree(store: TenantStore, caller: Caller, request_id: RequestId) -> dict[str, Json]:
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
    roots: list[Json] = []
    below: dict[str, list[Json]] = {}
    shown = items[:MAX_RECORDS]
    for item in shown:
        below[cast(str, item["request_id"])] = []
    for item in shown:
        call = {"tenant": store.tenant, **{name: cast(Json, item.get(name)) for name in _FIELDS}}
        siblings = below.get(cast(str, item["parent_request_id"]), roots)
        siblings.append({**call, "calls": below[cast(str, item["request_id"])]})
    return {"request_id": request_id, "calls": roots, "truncated": len(items) > MAX_RECORDS}
