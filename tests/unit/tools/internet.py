"""An internet of the test's own: names with public addresses, at which servers on loopback answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from spass.models.providers.direct import DirectTransport
from spass.tools.page_fetcher import PageFetcher

PUBLIC = "93.184.216.34"
"""The address of every name that has no other."""


@dataclass
class Internet:
    """``names`` have addresses; a function is called at each resolution. ``servers`` are base URLs on loopback by address, whose
    scheme replaces that of a request; that of ``PUBLIC`` is the default. ``connected`` are addresses and ports."""

    servers: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, Sequence[str] | Callable[[], Sequence[str]]] = field(default_factory=dict)
    connected: list[tuple[str, int]] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    open_transports: int = 0

    async def resolve(self, name: str) -> Sequence[str]:
        self.resolved.append(name)
        addresses = self.names.get(name, (PUBLIC,))
        return addresses() if callable(addresses) else addresses

    def open_transport(self) -> httpx.AsyncBaseTransport:
        self.open_transports += 1
        return _Transport(self)

    @property
    def fetcher(self) -> PageFetcher:
        return PageFetcher(self.resolve, self.open_transport)


class _Transport(httpx.AsyncBaseTransport):
    """Connect to the server on loopback that stands for the address of a request."""

    def __init__(self, internet: Internet) -> None:
        self._internet = internet
        self._direct = DirectTransport(keepalive=0.0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        self._internet.connected.append((url.host, url.port or {"http": 80, "https": 443}[url.scheme]))
        self._internet.requests.append(request)
        server = urlsplit(self._internet.servers.get(url.host) or self._internet.servers[PUBLIC])
        moved = httpx.Request(
            request.method,
            url.copy_with(scheme=server.scheme, host=server.hostname, port=server.port),
            headers=request.headers,
            extensions=request.extensions,
        )
        return await self._direct.handle_async_request(moved)

    async def aclose(self) -> None:
        self._internet.open_transports -= 1
        await self._direct.aclose()
