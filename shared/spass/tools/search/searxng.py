"""SearXNG, a search server of the operator's own (https://docs.searxng.org/dev/search_api.html)."""

from collections.abc import Sequence
from typing import ClassVar, Final

from spass.tools.http import ToolRequest
from spass.tools.search.provider import Hit, fetch_object, read_hits

_REFUSALS: Final = {
    401: "The search provider searxng refuses the gateway's key. Answer without it; the operator should check api_key_env.",
    403: "The search provider searxng refuses to answer in JSON. Answer without it; the operator should add json to "
    "search.formats in the settings.yml of SearXNG.",
}


class Searxng:
    """Search with a SearXNG server, which returns a fixed number of results. A key is sent as a bearer token: a proxy before the
    server may ask for one."""

    source: ClassVar[str] = "searxng"

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url}/search"

    async def search(self, query: str, _count: int, key: str | None, /) -> Sequence[Hit]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = ToolRequest(self._url, {"q": query, "format": "json"}, headers=headers)
        return read_hits(self.source, await fetch_object(self.source, request, _REFUSALS))
