"""The scope of a request, for tests that call the library as a route does."""

from spass.calls.scope import Scope
from spass.core.ids import RequestId, UserId
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Identity


def scope_of(
    store: TenantStore,
    user: str | None = "ana",
    *,
    token: str = "token",
    admin: bool = False,
    models: tuple[str, ...] = ("*",),
    request: str = "req_1",
    route: str = "/a1",
) -> Scope:
    """Return the scope of a request of ``user`` for ``route``."""
    identity = Identity(store.tenant, token, admin, models)
    return Scope.for_request(Caller(identity, UserId(user) if user else None, RequestId(request), None, 0, route), store)
