"""Refuse requests to the laptop's gateway under a foreign name, as those of a page whose domain resolves to this machine.

Everybody knows the laptop's tokens. Such a page (DNS rebinding) has the same origin as the gateway under that name.
"""

import os
import re
from collections.abc import Collection, Mapping
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from local.home import LocalError
from spass.core.errors import InvalidRequest
from spass.core.ids import RequestId, new_id
from spass.web.errors import error_response

VARIABLE: Final = "SPASS_ALLOWED_HOSTS"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]+)?")
_SHOWN_CHARACTERS: Final = 100


def extra_hosts(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names in ``SPASS_ALLOWED_HOSTS``, in lower case.

    Raises:
        LocalError: one of them is not a name or an address.
    """
    names = environment.get(VARIABLE, "").replace(",", " ").lower().split()
    for name in names:
        match = _HOST.fullmatch(name)
        if match is None or match[2]:
            raise LocalError(f"{VARIABLE}: '{name}' is not a host. Write names or addresses without a port, separated by commas.")
    return frozenset(names)


def page_origins(port: int, extra: Collection[str]) -> list[str]:
    """Return the origins of the pages of the gateway on ``port``, which is also reached under the names ``extra``."""
    own = [f"http://{host}:{port}" for host in sorted({*_LOOPBACK, *extra})]
    # A proxy in front of the gateway has the usual port.
    return own + [f"{scheme}://{host}" for host in sorted(extra) for scheme in ("http", "https")]


class HostGuard:
    """ASGI middleware that refuses a ``Host`` that is missing, or neither a loopback name with any port nor one of ``extra``."""

    def __init__(self, app: ASGIApp, extra: Collection[str]) -> None:
        self._app = app
        self._hosts = _LOOPBACK | frozenset(extra)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        foreign = self._foreign_host(scope) if scope["type"] == "http" else None
        if foreign is None:
            await self._app(scope, receive, send)
            return
        request_id = RequestId(new_id("req"))
        error = InvalidRequest(
            f"The host {foreign[:_SHOWN_CHARACTERS]!r} is not a name of this gateway. "
            f"Use the address that `make run` prints, or start it with the name in {VARIABLE}.",
            details={"errors": [{"loc": ["header", "Host"], "message": "Unknown host.", "type": InvalidRequest.code}]},
        )
        await error_response(error, request_id, {"SPASS-Request-Id": request_id})(scope, receive, send)

    def _foreign_host(self, scope: Scope) -> str | None:
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        for host in hosts or [""]:
            match = _HOST.fullmatch(host)
            if match is None or match[1] not in self._hosts:
                return str(host)
        return None
