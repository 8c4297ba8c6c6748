"""Wikipedia as a search provider, for gateways without another one."""

from collections.abc import Sequence
from typing import ClassVar, Final

from spass.tools.builtin.wikipedia import article_url, query_api
from spass.tools.search.provider import Hit

_LANGUAGE: Final = "en"


class Wikipedia:
    """Search the English Wikipedia."""

    source: ClassVar[str] = "wikipedia"

    async def search(self, query: str, count: int, _key: str | None, /) -> Sequence[Hit]:
        parameters: dict[str, str | int] = {"list": "search", "srsearch": query, "srlimit": count, "srprop": "snippet"}
        found = (await query_api(_LANGUAGE, parameters)).get("search")
        articles = [article for article in (found if isinstance(found, list) else []) if isinstance(article, dict)]
        return [
            Hit(title, article_url(_LANGUAGE, title), str(article.get("snippet", "")))
            for article in articles
            if (title := str(article.get("title", "")))
        ]
