"""Requests with an Idempotency-Key for tests."""

from spass.core.ids import TenantId, UserId
from spass.store.idempotency import IdempotentRequest


def idempotent_request(key: str, body_hash: str, path: str = "/a1/work") -> IdempotentRequest:
    """Return a POST by the user ana with ``key``."""
    return IdempotentRequest(TenantId("demo"), "token", UserId("ana"), "POST", path, key, body_hash)
