"""Wikipedia's API (https://www.mediawiki.org/wiki/API:Action_API), as the two Wikipedia tools use it."""

import json
import os
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Final, TypeAlias

import httpx
from pydantic import Field

from spass.core.messages import Json
from spass.redaction.text import redact_provider_text
from spass.tools.base import ToolError

Language: TypeAlias = Annotated[
    str,
    Field(pattern=r"^[a-z]{2,12}(-[a-z]{1,9}){0,2}$", max_length=12, description="The language edition, e.g. en, de or zh-yue."),
]

_DEFAULT_URL: Final = "https://{language}.wikipedia.org"
_MAX_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(8.0, connect=4.0)


async def query_api(language: str, parameters: Mapping[str, str | int]) -> Mapping[str, Json]:
    """Return the ``query`` member of the answer to ``action=query`` with ``parameters``.

    ``SPASS_WIKIPEDIA_URL`` names another server; ``language`` replaces ``{language}`` in it.

    Raises:
        ToolError: Wikipedia has no such language, refuses, fails or does not answer in time.
    """
    url = os.environ.get("SPASS_WIKIPEDIA_URL", _DEFAULT_URL).replace("{language}", language).rstrip("/") + "/w/api.php"
    query = {"action": "query", "format": "json", "formatversion": 2, "errorformat": "plaintext", **parameters}
    try:
        body = await _get(url, query, language)
    except httpx.TimeoutException:
        raise ToolError("Wikipedia did not answer in time. Try once more, or answer without it.") from None
    except httpx.HTTPError:
        raise ToolError(f"The {language!r} Wikipedia cannot be reached. Check the language code, or answer without it.") from None
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ToolError("Wikipedia answered something that cannot be read. Answer without it.")
    if errors := answer.get("errors"):
        detail = errors[0].get("text", "") if isinstance(errors, list) and isinstance(errors[0], dict) else ""
        raise ToolError(f"Wikipedia refused the request: {redact_provider_text(str(detail))[:300]}")
    result = answer.get("query")
    return result if isinstance(result, dict) else {}


async def _get(url: str, query: Mapping[str, str | int], language: str) -> bytes:
    headers = {"User-Agent": _user_agent(), "Accept": "application/json"}
    body = bytearray()
    async with (
        httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, verify=_tls()) as client,
        client.stream("GET", url, params=query) as response,
    ):
        if response.status_code == 429 or response.status_code >= 500:
            raise ToolError("Wikipedia is busy at the moment. Try again later, or answer without it.")
        if response.status_code in (301, 302, 307, 308, 404):
            raise ToolError(f"There is no Wikipedia in the language {language!r}. Use a code such as en, de or fr.")
        if response.status_code != 200:
            raise ToolError(f"Wikipedia refused the request with status {response.status_code}. Answer without it.")
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MAX_BYTES:
                raise ToolError("Wikipedia's answer is too long. Ask for less.")
    return bytes(body)


def _user_agent() -> str:
    """Return the program and a contact, which the operator sets in ``SPASS_CONTACT`` (an address or a page).

    https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy requires both.
    """
    contact = os.environ.get("SPASS_CONTACT", "self-hosted gateway")
    return f"SpassBot/1.0 ({contact}) httpx/{httpx.__version__}"


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context. Cached: reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()
