"""Perform ``FetchPage``: fetch the pages that a person named."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from spass.core.effects import Page

if TYPE_CHECKING:
    from spass.tools.page_fetcher import PageFetcher


def open_fetcher() -> "PageFetcher":
    """Return a fetcher of pages."""
    from spass.tools.page_fetcher import PageFetcher

    return PageFetcher()


class PagePerformer:
    """Fetch pages for one turn with ``input``.

    Only the URLs that the input contains are fetched, each at most once, so an instruction that is hidden in a text cannot send
    anything anywhere. A turn whose input a model wrote has no input here.
    """

    def __init__(self, input: str, fetcher: "Callable[[], PageFetcher]" = open_fetcher) -> None:
        self._input = input
        self._fetcher = fetcher
        self._fetched: set[str] = set()

    async def perform(self, url: str) -> Page:
        """Return the page, or the reason why there is none."""
        from spass.agents.kinds.native_openhands import PAGE_CHARACTERS
        from spass.agents.kinds.written_urls import MAX_URLS, absolute_url, written_urls

        if url not in written_urls(self._input):
            return Page(error=f"Only the first {MAX_URLS} URLs that a person writes in a message are fetched.")
        if url in self._fetched:
            return Page(error="This page was fetched before in this turn.")
        self._fetched.add(url)
        return await self._fetcher().fetch(absolute_url(url), PAGE_CHARACTERS)
