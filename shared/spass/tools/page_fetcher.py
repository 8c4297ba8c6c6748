"""Fetch pages that a person named, from public addresses only.

The name of a host is resolved once. All its addresses must be public, and the connection goes to one of them, so it does
not matter if the name resolves to something else a moment later. Each redirect is judged in the same way. No cookie, key or proxy
is used.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

import httpx

from spass.core.effects import Page
from spass.models.providers.decompression import iter_decompressed
from spass.models.providers.direct import DirectTransport
from spass.tools.addresses import is_public
from spass.tools.http import user_agent

SECONDS: Final = 10.0
"""Seconds for one page, with its redirects."""
MAX_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a page, both compressed and decompressed."""
MAX_REDIRECTS: Final = 3

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Return the addresses of the host with this name, or none."""
OpenTransport: TypeAlias = Callable[[], httpx.AsyncBaseTransport]
"""Return a transport for one request, whose URL has an address as host. The name is in the header ``Host`` and in the extension
``sni_hostname``."""

_MAX_URL_CHARACTERS: Final = 2048
_MAX_NAME: Final = 253  # characters (RFC 1035)
_NAME: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*+[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")  # as the end of a name, it makes the name an IPv4 address
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_TEXT: Final = re.compile(r"text/[^/]+|application/(?:[^/]*\+)?(?:json|xml)|application/(?:x-ndjson|(?:x-)?yaml)")
_CHARSET: Final = re.compile(r"""charset\s{0,9}=\s{0,9}["']?([\w.:-]{1,40})""", re.IGNORECASE)
_TOO_LONG: Final = "The page is longer than 2 MiB."
_NO_ADDRESS: Final = "The host has no public address."


class FetchRefused(Exception):
    """The page was not fetched. The message is the reason, for a model and a person. It quotes nothing that a host answered."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A page as it came, or the address to which a redirect leads."""

    content: bytes = b""
    media_type: str = ""
    charset: str | None = None
    location: str | None = None


def _open_direct() -> httpx.AsyncBaseTransport:
    return DirectTransport(keepalive=0.0)


async def resolve_name(name: str) -> Sequence[str]:
    """Return the addresses of ``name``. The resolver appends no search domain to it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class PageFetcher:
    """Fetch pages. ``resolve`` and ``open_transport`` are replaced by tests."""

    def __init__(self, resolve: Resolve = resolve_name, open_transport: OpenTransport = _open_direct) -> None:
        self._resolve = resolve
        self._open_transport = open_transport

    async def fetch(self, url: str, max_characters: int) -> Page:
        """Return the first ``max_characters`` of the text of the page, or the reason why there is none."""
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._follow(url)
                text = await self._read(answer, max_characters)
        except FetchRefused as failure:
            return Page(error=str(failure))
        except TimeoutError:
            return Page(error=f"The page did not arrive within {SECONDS:.0f} seconds.")
        except httpx.ConnectError:
            return Page(error="The host cannot be reached, or its certificate is not valid.")
        except httpx.HTTPError:
            return Page(error="The connection broke off, or the answer cannot be read.")
        return Page(text) if text else Page(error="The page has no text.")

    async def _read(self, answer: _Answer, max_characters: int) -> str:
        from spass.tools.page_text import page_text

        # In a thread: reading two megabytes of tags takes a while, and the event loop serves other requests.
        return await asyncio.to_thread(page_text, answer.content, answer.media_type, answer.charset, max_characters)

    async def _follow(self, url: str) -> _Answer:
        """Return the answer after at most three redirects."""
        for _ in range(MAX_REDIRECTS + 1):
            target = _parse(url)
            answer = await self._get(target)
            if answer.location is None:
                return answer
            try:
                url = str(target.join(answer.location))
            except (httpx.InvalidURL, ValueError):
                raise FetchRefused("The page redirects to something that is not a URL.") from None
        raise FetchRefused(f"The page redirects more than {MAX_REDIRECTS} times.")

    async def _get(self, target: httpx.URL) -> _Answer:
        name = target.raw_host.decode("ascii")
        host = target.netloc.decode("ascii")
        address = await self._judged_address(name)
        request = httpx.Request(
            "GET",
            target.copy_with(host=str(address)),
            headers={"Host": host, "User-Agent": user_agent(), "Accept": "text/html, text/*;q=0.9", "Accept-Encoding": "gzip"},
            extensions={"sni_hostname": name},
        )
        transport = self._open_transport()
        try:
            response = await transport.handle_async_request(request)
            try:
                return await _read_answer(response)
            finally:
                await response.aclose()
        finally:
            await transport.aclose()

    async def _judged_address(self, name: str) -> IPv4Address | IPv6Address:
        """Return an address of the host, all of whose addresses are public.

        The error is the same for a name without addresses, so that it does not tell which names exist in a private network.
        """
        literal = _literal(name)
        addresses = [literal] if literal is not None else [ip_address(text) for text in await self._resolve(name)]
        if not addresses or not all(map(is_public, addresses)):
            raise FetchRefused(_NO_ADDRESS)
        return min(addresses, key=lambda address: address.version)  # some networks have no way out for IPv6


def _parse(text: str) -> httpx.URL:
    """Return the URL without its fragment. Its host is an address or a name in ASCII, without a final dot."""
    if len(text) > _MAX_URL_CHARACTERS:
        raise FetchRefused(f"The URL is longer than {_MAX_URL_CHARACTERS} characters.")
    try:
        url = httpx.URL(text).copy_with(fragment=None)
        name = url.raw_host.decode("ascii").removesuffix(".")
    except (httpx.InvalidURL, ValueError):
        raise FetchRefused("This is not a valid URL.") from None
    if url.scheme not in _PORTS:
        raise FetchRefused("Only http and https are fetched.")
    if url.userinfo:
        raise FetchRefused("A URL with credentials is not fetched.")
    if url.port not in (None, *_PORTS.values()):
        raise FetchRefused("Only the ports 80 and 443 are fetched.")
    if _literal(name) is None and (len(name) > _MAX_NAME or not _NAME.fullmatch(name) or _is_number(name)):
        raise FetchRefused("The URL has no valid host.")
    return url.copy_with(host=name)


def _literal(name: str) -> IPv4Address | IPv6Address | None:
    """Return the address that the host is, or None if it is a name."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def _is_number(name: str) -> bool:
    """Return whether resolvers may read ``name`` as an IPv4 address in octal, hexadecimal or as one number."""
    return _NUMBER.fullmatch(name.rpartition(".")[2]) is not None


async def _read_answer(response: httpx.Response) -> _Answer:
    if response.status_code in _REDIRECTS and (location := response.headers.get("location")):
        return _Answer(location=location)
    if not response.is_success:
        raise FetchRefused(f"The host answered with status {response.status_code}.")
    content_type = response.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if not _TEXT.fullmatch(media_type):
        raise FetchRefused("The page is not text.")
    limited = httpx.Response(response.status_code, headers=response.headers, stream=_Limited(response.stream))
    content = bytearray()
    async for piece in iter_decompressed(limited):
        content += piece
        if len(content) > MAX_BYTES:
            raise FetchRefused(_TOO_LONG)
    charset = _CHARSET.search(content_type)
    return _Answer(bytes(content), media_type, charset[1] if charset else None)


class _Limited(httpx.AsyncByteStream):
    """The bytes of a body as they arrive, up to the limit: a compressed body can be endless and decompress to nothing."""

    def __init__(self, stream: object) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        if isinstance(self._stream, httpx.AsyncByteStream):
            async for piece in self._stream:
                size += len(piece)
                if size > MAX_BYTES:
                    raise FetchRefused(_TOO_LONG)
                yield piece
