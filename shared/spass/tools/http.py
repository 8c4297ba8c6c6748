"""Send one HTTP request for a tool and read a bounded answer. Redirects are not followed."""

import html
import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import httpx

from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.redaction.log import failure_line, write_line

_MAX_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(8.0, connect=4.0)


class AnswerTooLong(Exception):
    """The answer is longer than 1 MiB."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """An answer. ``body`` is empty unless ``status`` is 200."""

    status: int
    body: bytes = b""

    def read_object(self) -> Mapping[str, Json] | None:
        """Return the JSON object in the body, or None if it is something else. Halves of surrogate pairs become question marks:
        no model and no table takes them."""
        try:
            text = self.body.decode("utf-8-sig", "replace")
            value = json.loads(text)
            if "\\u" in text:
                value = json.loads(dump_bytes(value))
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


async def send(
    url: str, query: Mapping[str, str | int], body: Mapping[str, Json] | None = None, headers: Mapping[str, str] | None = None
) -> ServerAnswer:
    """Return the answer to a POST of ``body`` as JSON, or without one to a GET.

    Raises:
        AnswerTooLong: the body is longer than 1 MiB.
        httpx.HTTPError: the server cannot be reached, is silent for eight seconds or breaks the connection, or a variable for
            proxies or certificates is wrong.
    """
    # A compressed body could grow a thousandfold when it is decoded.
    all_headers = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    method = "GET" if body is None else "POST"
    received = bytearray()
    async with (
        _open_client(url, all_headers) as client,
        client.stream(method, url, params=query or None, json=body) as response,
    ):
        if response.status_code != 200:
            return ServerAnswer(response.status_code)
        async for piece in response.aiter_raw():
            received += piece
            if len(received) > _MAX_BYTES:
                raise AnswerTooLong
    return ServerAnswer(200, bytes(received))


def user_agent() -> str:
    """Return the program and a contact, which the operator sets in ``SPASS_CONTACT`` (an address or a page).

    https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy requires both.
    """
    contact = os.environ.get("SPASS_CONTACT", "self-hosted gateway")
    return f"SpassBot/1.0 ({contact}) httpx/{httpx.__version__}"


def _open_client(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    # A proxy of the environment cannot reach the addresses of this machine.
    trust_env = urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")
    try:
        return httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, verify=_tls(), trust_env=trust_env)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        write_line({**failure_line(error, ""), "event": "proxy_settings_failed"})
        raise httpx.ProxyError("The proxy or the certificates of the environment cannot be used.") from None


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context. Cached: reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()


_TAG: Final = re.compile(r"<[^<>]*>")  # without "<" in a tag, the time does not grow with the square of the length
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{10,};?")  # no character has such a number, and Python refuses to read a very long one
_BLANKS: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_MAX_HTML_CHARACTERS: Final = 20_000


def plain_text(markup: str, max_characters: int) -> str:
    """Return the text of ``markup`` on one line of at most ``max_characters``."""
    text = html.unescape(_LONG_NUMBER.sub("\ufffd", _TAG.sub("", markup[:_MAX_HTML_CHARACTERS])))
    text = _BLANKS.sub(" ", text).strip()
    return text if len(text) <= max_characters else text[: max_characters - 1].rstrip() + "…"
