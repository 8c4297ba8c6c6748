"""Send one HTTP request for a tool and read a bounded answer. Redirects are not followed."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import httpx

from spass.core.messages import Json

_MAX_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(8.0, connect=4.0)


class AnswerTooLong(Exception):
    """The answer is longer than 1 MiB."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A request. With a ``body`` it is a POST of JSON, without one a GET."""

    url: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: Mapping[str, Json] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """An answer. ``body`` is empty unless ``status`` is 200."""

    status: int
    body: bytes = b""

    def read_object(self) -> Mapping[str, Json] | None:
        """Return the JSON object in the body, or None if it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


async def send(request: ToolRequest) -> ToolAnswer:
    """Return the answer to ``request``.

    Raises:
        AnswerTooLong: the body is longer than 1 MiB.
        httpx.HTTPError: the server cannot be reached, is silent for eight seconds or breaks the connection.
    """
    # A compressed body could grow a thousandfold when it is decoded.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", **request.headers}
    method = "GET" if request.body is None else "POST"
    body = bytearray()
    async with (
        httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, verify=_tls()) as client,
        client.stream(method, request.url, params=request.query or None, json=request.body) as response,
    ):
        if response.status_code != 200:
            return ToolAnswer(response.status_code)
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > _MAX_BYTES:
                raise AnswerTooLong
    return ToolAnswer(200, bytes(body))


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context. Cached: reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()
