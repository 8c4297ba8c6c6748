"""Search with the provider that ``gateway.yaml`` names, and return results that a model may read."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

import httpx

from spass.core.errors import SpassError
from spass.core.messages import Json
from spass.core.time import now
from spass.redaction.detector import SecretSet
from spass.redaction.log import failure_line, write_line
from spass.redaction.stream import redact_secrets
from spass.tenancy.config import SearchConfig
from spass.tools.base import ToolError
from spass.tools.builtin.wikipedia import article_url, query_api
from spass.tools.http import AnswerTooLong, ServerAnswer, plain_text, send

_BUSY: Final = frozenset({408, 425, 429, 432, 433})  # 432 and 433: the limits of a Tavily plan
_REDIRECTS: Final = range(300, 400)


_SEARXNG_REFUSALS: Final = {
    401: "The search provider searxng refuses the gateway's key. Answer without it; the operator should check api_key_env.",
    403: "The search provider searxng refuses to answer in JSON. Answer without it; the operator should add json to "
    "search.formats in the settings.yml of SearXNG.",
}
DEFAULT_URL: Final = "https://api.tavily.com"

_WRONG_KEY: Final = (
    "The search provider tavily refuses the gateway's key. Answer without it; the operator should check api_key_env."
)
_TAVILY_REFUSALS: Final = {401: _WRONG_KEY, 403: _WRONG_KEY}


@dataclass(frozen=True, slots=True)
class Hit:
    """A page. As a provider describes it, its texts may be HTML; ``SearchEngine`` returns plain and bounded ones."""

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """Find pages. ``source`` is the provider's name in results."""

    source: ClassVar[str]

    async def search(self, query: str, count: int, key: str | None, /) -> Sequence[Hit]:
        """Return about ``count`` pages, best first. Raise ToolError if the provider failed. The message says what to do."""
        ...


def failure(message: str) -> ToolError:
    """Return the error of a search that failed."""
    return ToolError(message, code="search_failed")


async def _fetch_hits(source: str, request: Awaitable[ServerAnswer], refusals: Mapping[int, str]) -> Sequence[Hit]:
    """Return the hits in the ``results`` that the server of ``source`` answers, each with ``title``, ``url`` and ``content``.
    Leave out hits of another shape. ``refusals`` explains statuses of this provider. The message of an error has neither the
    server's address nor its words."""
    try:
        answer = await request
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
    results = found.get("results")
    if not isinstance(results, list):
        raise failure(
            f"The search provider {source} answered JSON without results. Answer without it; the operator should check search in "
            "gateway.yaml."
        )
    hits = [result for result in results if isinstance(result, dict)]
    return [Hit(*(_text(hit.get(name)) for name in ("title", "url", "content"))) for hit in hits]


def _describe_status(source: str, status: int) -> str:
    if status in _BUSY:
        return f"The search provider {source} accepts no more searches at the moment. Search later, or answer without it."
    if status >= 500:
        return f"The search provider {source} fails at the moment. Search once more, or answer without it."
    advice = "Answer without it; the operator should check search in gateway.yaml."
    if status in _REDIRECTS:
        return f"The search provider {source} redirects to another address, which is not followed. {advice}"
    return f"The search provider {source} refused the search with status {status}. {advice}"


def _authorization(key: str | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


class Searxng:
    """Search with SearXNG, a server of the operator's own (https://docs.searxng.org/dev/search_api.html), which returns a fixed
    number of results. A key is sent as a bearer token: a proxy before the server may ask for one."""

    source: ClassVar[str] = "searxng"

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url}/search"

    async def search(self, query: str, _count: int, key: str | None, /) -> Sequence[Hit]:
        request = send(self._url, {"q": query, "format": "json"}, headers=_authorization(key))
        return await _fetch_hits(self.source, request, _SEARXNG_REFUSALS)


class Tavily:
    """Search with Tavily (https://docs.tavily.com/documentation/api-reference/endpoint/search), or with a server that speaks its
    protocol."""

    source: ClassVar[str] = "tavily"

    def __init__(self, base_url: str | None = None) -> None:
        self._url = f"{base_url or DEFAULT_URL}/search"

    async def search(self, query: str, count: int, key: str | None, /) -> Sequence[Hit]:
        body: dict[str, Json] = {"query": query, "max_results": count, "search_depth": "basic", "include_answer": False}
        request = send(self._url, {}, body, _authorization(key))
        return await _fetch_hits(self.source, request, _TAVILY_REFUSALS)


class Wikipedia:
    """Search the English Wikipedia, for gateways without another provider."""

    source: ClassVar[str] = "wikipedia"

    async def search(self, query: str, count: int, _key: str | None, /) -> Sequence[Hit]:
        parameters: dict[str, str | int] = {"list": "search", "srsearch": query, "srlimit": count, "srprop": "snippet"}
        found = (await query_api("en", parameters)).get("search")
        articles = [article for article in (found if isinstance(found, list) else []) if isinstance(article, dict)]
        return [
            Hit(title, article_url("en", title), str(article.get("snippet", "")))
            for article in articles
            if (title := str(article.get("title", "")))
        ]


KeyOf: TypeAlias = Callable[[str], str | None]
"""Return the key in an environment variable, or None if it is not set. It may block."""

_MAX_TITLE_CHARACTERS: Final = 200
_MAX_SNIPPET_CHARACTERS: Final = 500
_MAX_URL_CHARACTERS: Final = 2000
_KEY: Final = re.compile(r"[!-~]+")  # a header must not contain anything else
_URL: Final = re.compile(r"https?://[^\s\x00-\x20\x7f\"<>\\^`{|}]+", re.IGNORECASE)


class SearchEngine:
    """Search with the provider of ``config``. ``key_of`` looks up its key."""

    def __init__(self, config: SearchConfig, key_of: KeyOf) -> None:
        self._provider = _provider_of(config)
        self._variable = config.key_variable
        self._key_of = key_of

    @property
    def source(self) -> str:
        return self._provider.source

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """Return at most ``count`` results, best first. All texts are plain, bounded and without secrets of the gateway. Raise
        ``ToolError`` if the provider failed, or its key is missing. The message says what to do."""
        key = await self._read_key()
        hits = await self._provider.search(query, count, key)
        secrets = SecretSet((key,) if key else (), ())
        results: dict[str, Hit] = {}
        for hit in hits:
            if _is_web_address(hit.url) and len(results) < count:
                results.setdefault(hit.url, _clean(hit, secrets))
        return list(results.values())

    async def _read_key(self) -> str | None:
        if self._variable is None:
            return None
        try:
            key = await asyncio.to_thread(self._key_of, self._variable)
        except SpassError as error:  # without this, a search that the model could do without would end the whole turn
            write_line({**failure_line(error, ""), "level": "warning", "event": "provider_keys_read_failed"})
            raise failure("The key of the search provider cannot be read now. Search later, or answer without it.") from None
        if not key:
            write_line({"at": now(), "level": "error", "event": "key_missing", "set": [self._variable]})
            raise failure(
                f"The search provider {self.source} has no key on this gateway. Answer without it; the operator finds the name "
                "of the missing variable in the log."
            )
        if not _KEY.fullmatch(key):
            raise failure(
                f"The key of the search provider {self.source} is not valid. Answer without it; the operator should check it."
            )
        return key


def _provider_of(config: SearchConfig) -> SearchProvider:
    match config.provider:
        case "searxng" if config.base_url:
            return Searxng(config.base_url)
        case "tavily":
            return Tavily(config.base_url)
        case _:
            return Wikipedia()


def _is_web_address(url: str) -> bool:
    """Return whether ``url`` is an address of http or https with a host and without credentials."""
    if len(url) > _MAX_URL_CHARACTERS or not _URL.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _clean(hit: Hit, secrets: SecretSet) -> Hit:
    title, url, snippet = (
        redact_secrets(secrets, text)
        for text in (plain_text(hit.title, _MAX_TITLE_CHARACTERS), hit.url, plain_text(hit.snippet, _MAX_SNIPPET_CHARACTERS))
    )
    return Hit(title or url, url, snippet)
