"""Search with the provider that ``gateway.yaml`` names, and return results that a model may read."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from spass.core.errors import SpassError
from spass.core.time import now
from spass.redaction.detector import SecretSet
from spass.redaction.log import failure_line, write_line
from spass.redaction.stream import redact_secrets
from spass.tenancy.config import SearchConfig
from spass.tools.http import plain_text
from spass.tools.search.providers import Hit, SearchProvider, Searxng, Tavily, Wikipedia, failure

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
        """Return at most ``count`` results, best first. All texts are plain, bounded and without secrets of the gateway.

        Raises:
            ToolError: the provider failed, or its key is missing. The message says what to do.
        """
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
