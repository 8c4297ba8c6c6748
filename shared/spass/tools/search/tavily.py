"""Tavily, a search service for models (https://docs.tavily.com/documentation/api-reference/endpoint/search)."""

from collections.abc import Sequence
from typing import ClassVar, Final

from spass.core.messages import Json
from spass.tools.http import ToolRequest
from spass.tools.search.provider import Hit, fetch_object, read_hits

DEFAULT_URL: Final = "https://api.tavily.com"

_WRONG_KEY: Final = (
    "The search provider tavily refuses the gateway's key. Answer without it; the operator should check api_key_env."
)
_REFUSALS: Final = {401: _WRONG_KEY, 403: _WRONG_KEY}


class Tavily:
    """Search with Tavily, or with a server that speaks its protocol."""

    source: ClassVar[str] = "tavily"

    def __init__(self, base_url: str | None = None) -> None:
        self._url = f"{base_url or DEFAULT_URL}/search"

    async def search(self, query: str, count: int, key: str | None, /) -> Sequence[Hit]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body: dict[str, Json] = {"query": query, "max_results": count, "search_depth": "basic", "include_answer": False}
        request = ToolRequest(self._url, body=body, headers=headers)
        return read_hits(self.source, await fetch_object(self.source, request, _REFUSALS))
