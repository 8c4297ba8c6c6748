"""Choose the transport to a provider, and note whether a failed request may have reached it."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from spass.llm.attempt import Attempt
from spass.llm.providers.direct import SENT, DirectTransport

_KEEPALIVE_SECONDS: Final = 15.0  # shorter than the idle limit of the load balancers in front of models
_NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.WriteError,
    httpx.WriteTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def transport_to(base_url: str) -> httpx.AsyncBaseTransport:
    """Return the transport straight to the provider, or through the proxy that the environment names for it."""
    proxy = _proxy(httpx.URL(base_url))
    if proxy is None:
        return DirectTransport(keepalive=_KEEPALIVE_SECONDS)
    return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS))


def _proxy(url: httpx.URL) -> str | None:
    """Return the proxy that the environment names for ``url``. A server on this machine is never asked through one."""
    if url.host in _LOOPBACK or urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


@contextmanager
def track_sent(request: httpx.Request, attempt: Attempt) -> Iterator[None]:
    """Note for a ``request`` that ends without an answer whether the provider may have all of it.

    ``DirectTransport`` says so itself. Of another transport it is assumed, unless the exception shows the opposite.
    """
    try:
        yield
    except BaseException as error:
        if request.extensions.get(SENT, not isinstance(error, _NEVER_SENT)):
            attempt.sent = True
        raise
