"""The interface of a search provider, and the exchange with its server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import httpx

from spass.core.messages import Json
from spass.tools.base import ToolError
from spass.tools.http import AnswerTooLong, ToolRequest, send

_BUSY: Final = frozenset({408, 425, 429, 432, 433})  # 432 and 433: the limits of a Tavily plan
_REDIRECTS: Final = range(300, 400)


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that a provider found, as the provider describes it. ``text`` may be HTML."""

    title: str
    url: str
    text: str


class SearchProvider(Protocol):
    """Find pages. ``source`` is the provider's name in results."""

    source: ClassVar[str]

    async def search(self, query: str, count: int, key: str | None, /) -> Sequence[Hit]:
        """Return about ``count`` pages, best first.

        Raises:
            ToolError: the provider failed. The message says what to do.
        """
        ...


def failure(message: str) -> ToolError:
    """Return the error of a search that failed."""
    return ToolError(message, code="search_failed")


async def fetch_object(source: str, request: ToolRequest, refusals: Mapping[int, str]) -> Mapping[str, Json]:
    """Return the JSON object that the server of ``source`` answers. ``refusals`` explains statuses of this provider.

    Raises:
        ToolError: there is no such answer. The message has neither the server's address nor its words.
    """
    try:
        answer = await send(request)
    except httpx.TimeoutException:
        raise failure(f"The search provider {source} did not answer in time. Search once more, or answer without it.") from None
    except AnswerTooLong:
        raise failure(f"The answer of the search provider {source} is too long. Search for less, or answer without it.") from None
    except (httpx.HTTPError, httpx.InvalidURL):
        raise failure(f"The search provider {source} cannot be reached. Answer without it, and say so.") from None
    if answer.status != 200:
        raise failure(refusals.get(answer.status) or _describe_status(source, answer.status))
    found = answer.read_object()
    if found is None:
        raise failure(
            f"The search provider {source} answered something that is not JSON. Answer without it; the operator should check "
            "search in gateway.yaml."
        )
    return found


def _describe_status(source: str, status: int) -> str:
    if status in _BUSY:
        return f"The search provider {source} accepts no more searches at the moment. Search later, or answer without it."
    if status >= 500:
        return f"The search provider {source} fails at the moment. Search once more, or answer without it."
    advice = "Answer without it; the operator should check search in gateway.yaml."
    if status in _REDIRECTS:
        return f"The search provider {source} redirects to another address, which is not followed. {advice}"
    return f"The search provider {source} refused the search with status {status}. {advice}"


def read_hits(source: str, found: Mapping[str, Json]) -> Sequence[Hit]:
    """Return the hits in ``results``, each with ``title``, ``url`` and ``content``. Leave out those of another shape.

    Raises:
        ToolError: there is no list of results.
    """
    results = found.get("results")
    if not isinstance(results, list):
        raise failure(
            f"The search provider {source} answered JSON without results. Answer without it; the operator should check search in "
            "gateway.yaml."
        )
    hits = [result for result in results if isinstance(result, dict)]
    return [Hit(*(_text(hit.get(name)) for name in ("title", "url", "content"))) for hit in hits]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
