"""Choose the transport to a provider, and record whether it may have received a failed request."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from spass.models.attempt import Attempt
from spass.models.providers.direct import SENT, DirectTransport

_KEEPALIVE_SECONDS: Final = 15.0  # shorter than the idle limit of the load balancers in front of models
_NOT_SENT_WHOLE: Final = (
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
    """Return a direct transport to ``base_url``, or a transport through the proxy that the environment sets for it."""
    proxy = _find_proxy(httpx.URL(base_url))
    if proxy is None:
        return DirectTransport(keepalive=_KEEPALIVE_SECONDS)
    return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS))


def _find_proxy(url: httpx.URL) -> str | None:
    """Return the URL of the proxy that the environment sets for ``url``, or None. A server on this machine has no proxy."""
    if url.host in _LOOPBACK or urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


@contextmanager
def track_sent(request: httpx.Request, attempt: Attempt) -> Iterator[None]:
    """Set ``attempt.sent`` if ``request`` ends without an answer and the provider may have received all of it, as the extension
    ``SENT`` says. With another transport than ``DirectTransport``, only the exceptions in ``_NOT_SENT_WHOLE`` prove the opposite.
    """
    try:
        yield
    except BaseException as error:
        if request.extensions.get(SENT, not isinstance(error, _NOT_SENT_WHOLE)):
            attempt.sent = True
        raise
