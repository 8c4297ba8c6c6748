"""Wikipedia's API (https://www.mediawiki.org/wiki/API:Action_API), as the tools that search Wikipedia use it."""

import os
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias
from urllib.parse import quote

import httpx
from pydantic import Field

from spass.core.messages import Json
from spass.redaction.text import redact_provider_text
from spass.tools.base import ToolError
from spass.tools.http import AnswerTooLong, ToolAnswer, ToolRequest, send, user_agent

Language: TypeAlias = Annotated[
    str,
    Field(pattern=r"^[a-z]{2,12}(-[a-z]{1,9}){0,2}$", max_length=12, description="The language edition, e.g. en, de or zh-yue."),
]

_DEFAULT_URL: Final = "https://{language}.wikipedia.org"


async def query_api(language: str, parameters: Mapping[str, str | int]) -> Mapping[str, Json]:
    """Return the ``query`` member of the answer to ``action=query`` with ``parameters``.

    ``SPASS_WIKIPEDIA_URL`` names another server; ``language`` replaces ``{language}`` in it.

    Raises:
        ToolError: Wikipedia has no such language, refuses, fails or does not answer in time.
    """
    query = {"action": "query", "format": "json", "formatversion": 2, "errorformat": "plaintext", **parameters}
    try:
        response = await send(ToolRequest(f"{_server(language)}/w/api.php", query, headers={"User-Agent": user_agent()}))
    except httpx.TimeoutException:
        raise ToolError("Wikipedia did not answer in time. Try once more, or answer without it.") from None
    except httpx.HTTPError:
        raise ToolError(_unreachable(language)) from None
    except AnswerTooLong:
        raise ToolError("Wikipedia's answer is too long. Ask for less.") from None
    _check_status(response, language)
    answer = response.read_object()
    if answer is None:
        raise ToolError("Wikipedia answered something that cannot be read. Answer without it.")
    if errors := answer.get("errors"):
        detail = errors[0].get("text", "") if isinstance(errors, list) and isinstance(errors[0], dict) else ""
        raise ToolError(f"Wikipedia refused the request: {redact_provider_text(str(detail))[:300]}")
    result = answer.get("query")
    return result if isinstance(result, dict) else {}


def article_url(language: str, title: str) -> str:
    """Return the address of the article ``title``."""
    return f"{_server(language)}/wiki/{quote(title.replace(' ', '_'), safe='/:(),')}"


def _server(language: str) -> str:
    return os.environ.get("SPASS_WIKIPEDIA_URL", _DEFAULT_URL).replace("{language}", language).rstrip("/")


def _unreachable(language: str) -> str:
    # The host of a language that does not exist has no address, so the language may be the reason. English exists.
    if language == "en":
        return "Wikipedia cannot be reached from this gateway. Answer without it."
    return f"The {language!r} Wikipedia cannot be reached. Check the language code, or answer without it."


def _check_status(response: ToolAnswer, language: str) -> None:
    if response.status == 429 or response.status >= 500:
        raise ToolError("Wikipedia is busy at the moment. Try again later, or answer without it.")
    if response.status in (301, 302, 307, 308, 404):
        raise ToolError(f"There is no Wikipedia in the language {language!r}. Use a code such as en, de or fr.")
    if response.status != 200:
        raise ToolError(f"Wikipedia refused the request with status {response.status}. Answer without it.")
