"""The state of one HTTP request, which the edge, the route and the services share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope as AsgiScope

from spass.core.cost import Cost, decimal_text
from spass.core.ids import RequestId, new_id

if TYPE_CHECKING:
    from spass.calls.scope import Scope
    from spass.store.idempotency import IdempotentRequest
    from spass.web.services import Services

_KEY: Final = "spass.exchange"


@dataclass(slots=True)
class Exchange:
    """The state of one request. The edge creates it, and the route adds the caller.

    ``started`` is in seconds of ``time.monotonic``. ``route`` is the path template of the route. ``error`` is the error's code.
    ``idempotency`` identifies a request with an Idempotency-Key.
    """

    request_id: RequestId = field(default_factory=lambda: RequestId(new_id("req")))
    started: float = field(default_factory=time.monotonic)
    route: str | None = None
    error: str | None = None
    _scope: "Scope | None" = None
    _services: "Services | None" = None
    idempotency: "IdempotentRequest | None" = None

    def enter(self, scope: "Scope", services: "Services") -> None:
        """Add the caller's scope and the services."""
        self._scope = scope
        self._services = services

    @property
    def scope(self) -> "Scope":
        if self._scope is None:
            raise RuntimeError("a public route has no caller")
        return self._scope

    @property
    def services(self) -> "Services":
        if self._services is None:
            raise RuntimeError("a public route has no services")
        return self._services

    @property
    def tenant(self) -> str | None:
        return self._scope.caller.tenant if self._scope else None

    def cost_headers(self) -> Mapping[str, str]:
        """Return the headers with the cost of the model calls so far; empty if there were none."""
        return render_cost_headers(self._scope.tally.total) if self._scope is not None else {}


def render_cost_headers(cost: Cost) -> Mapping[str, str]:
    """Return the headers with ``cost``; none if there were no model calls."""
    if not cost.sub_calls:
        return {}
    return {
        "SPASS-Cost-Eur": decimal_text(cost.eur),
        "SPASS-Cost-Usd": decimal_text(cost.usd),
        "SPASS-Cost-Source": cost.source.value,
        "SPASS-Cost-Sub-Calls": str(cost.sub_calls),
    }


def begin_exchange(asgi_scope: AsgiScope) -> Exchange:
    """Create the exchange of a new request, and store it in its ASGI scope."""
    exchange = asgi_scope[_KEY] = Exchange()
    return exchange


def get_exchange(request: Request) -> Exchange:
    """Return the exchange of ``request``."""
    exchange: Exchange = request.scope[_KEY]
    return exchange


async def _provide_exchange(request: Request) -> Exchange:
    return get_exchange(request)


CurrentExchange = Annotated[Exchange, Depends(_provide_exchange)]
"""A parameter of a route: the exchange, with the caller and the services."""
