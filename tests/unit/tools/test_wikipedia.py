"""The Wikipedia tools, against a server with MediaWiki's wire format."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from spass.core.messages import Json
from spass.testing.http_server import HttpAnswer, HttpRequest, serve
from spass.tools.base import ToolError
from spass.tools.builtin import wikipedia
from spass.tools.builtin.wikipedia import WikipediaSearch, WikipediaSummary
from tests.unit.tools.fakes import scope_for

pytestmark = pytest.mark.anyio
SCOPE = scope_for()


@dataclass(slots=True)
class Wiki:
    """A server that answers every request with ``status`` and ``body``, and records path, query and User-Agent."""

    body: bytes = b"{}"
    status: int = 200
    paths: list[str] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        parts = urlsplit(request.path)
        self.paths.append(parts.path)
        self.queries.append(parse_qs(parts.query))
        self.agents.append(request.headers["User-Agent"])
        return HttpAnswer(self.body, self.status)

    def set_answer(self, answer: Json) -> None:
        self.body = json.dumps(answer).encode()


@pytest.fixture
def wiki(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wiki]:
    state = Wiki()
    with serve(state.answer) as url:
        monkeypatch.setenv("SPASS_WIKIPEDIA_URL", f"{url}/{{language}}")
        yield state


def page(**fields: Json) -> Json:
    return {"query": {"pages": [{"pageid": 1, "title": "Berlin", "fullurl": "https://en.wikipedia.org/wiki/Berlin", **fields}]}}


async def test_a_search_returns_titles_and_snippets_without_markup(wiki: Wiki) -> None:
    wiki.set_answer(
        {
            "query": {
                "searchinfo": {"totalhits": 2},
                "search": [
                    {
                        "title": "Berlin Wall",
                        "snippet": 'The <b class="searchmatch">Berlin</b> Wall &amp; its &quot;fall&quot;',
                    },
                    {"title": "Checkpoint Charlie", "snippet": ""},
                ],
            }
        }
    )
    result = await WikipediaSearch(query="Berlin Wall", limit=2).run(SCOPE)
    assert result == {
        "query": "Berlin Wall",
        "language": "en",
        "results": [
            {"title": "Berlin Wall", "snippet": 'The Berlin Wall & its "fall"'},
            {"title": "Checkpoint Charlie", "snippet": ""},
        ],
    }
    (query,) = wiki.queries
    assert wiki.paths == ["/en/w/api.php"]
    assert query["srsearch"] == ["Berlin Wall"]
    assert query["srlimit"] == ["2"]
    assert query["list"] == ["search"]


async def test_a_search_without_results_returns_the_suggestion(wiki: Wiki) -> None:
    wiki.set_answer({"query": {"searchinfo": {"totalhits": 0, "suggestion": "berlin wall"}, "search": []}})
    result = await WikipediaSearch(query="berln wal").run(SCOPE)
    assert result == {"query": "berln wal", "language": "en", "results": [], "suggestion": "berlin wall"}


async def test_the_user_agent_names_the_operators_contact(wiki: Wiki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_CONTACT", "ops@example.org")
    await WikipediaSearch(query="x").run(SCOPE)
    assert wiki.agents[0].startswith("SpassBot/")
    assert "(ops@example.org)" in wiki.agents[0]


async def test_a_summary_is_the_introduction_and_the_url(wiki: Wiki) -> None:
    wiki.set_answer(page(extract="Berlin is the capital of Germany.\n"))
    assert await WikipediaSummary(title="berlin", language="de").run(SCOPE) == {
        "title": "Berlin",
        "language": "de",
        "url": "https://en.wikipedia.org/wiki/Berlin",
        "summary": "Berlin is the capital of Germany.",
    }
    assert wiki.paths == ["/de/w/api.php"]
    assert wiki.queries[0]["redirects"] == ["1"]


async def test_a_disambiguation_page_lists_its_articles(wiki: Wiki) -> None:
    wiki.set_answer(
        page(extract="Berlin may refer to:", pageprops={"disambiguation": ""}, links=[{"ns": 0, "title": "Berlin, Ohio"}])
    )
    result = await WikipediaSummary(title="Berlin (disambiguation)").run(SCOPE)
    assert isinstance(result, dict)
    assert result["disambiguation"] is True
    assert result["may_refer_to"] == ["Berlin, Ohio"]


async def test_a_long_introduction_is_truncated_and_says_so(wiki: Wiki) -> None:
    wiki.set_answer(page(extract="x" * 20000))
    result = await WikipediaSummary(title="Berlin").run(SCOPE)
    assert isinstance(result, dict)
    assert result["truncated"] is True
    assert len(str(result["summary"])) == 8000


@pytest.mark.parametrize(
    "answer",
    [
        {"query": {"pages": [{"title": "Nix", "missing": True}]}},
        {"query": {"pages": [{"title": "<>", "invalid": True, "invalidreason": "…"}]}},
        {"query": {"interwiki": [{"title": "fr:Berlin", "iw": "fr"}]}},
        {"query": {"pages": []}},
        {"batchcomplete": True},
        {"query": []},
        {"query": {"pages": {"1": {}}}},
    ],
)
async def test_a_missing_article_is_an_error_that_names_wikipedia_search(wiki: Wiki, answer: Json) -> None:
    wiki.set_answer(answer)
    with pytest.raises(ToolError, match="wikipedia_search") as caught:
        await WikipediaSummary(title="Nix").run(SCOPE)
    assert caught.value.code == "article_not_found"


@pytest.mark.parametrize(
    ("status", "body", "excerpt"),
    [
        (200, b"<html>", "cannot be read"),
        (200, b"[]", "cannot be read"),
        (200, b"\xff\xfe", "cannot be read"),
        (200, b"[" * 100_000, "cannot be read"),
        (200, b" " * (1024 * 1024 + 1), "too long"),
        (
            200,
            b'{"errors": [{"code": "cirrussearch-too-long", "text": "Search request is too long"}]}',
            "Search request is too long",
        ),
        (200, b'{"errors": [7]}', "refused"),
        (200, b'{"errors": {}, "error": 1}', None),
        (301, b"", "no Wikipedia in the language"),
        (404, b"", "no Wikipedia in the language"),
        (403, b"", "status 403"),
        (429, b"", "busy"),
        (500, b"", "busy"),
        (503, b"", "busy"),
    ],
)
async def test_every_failure_of_wikipedia_has_a_message(wiki: Wiki, status: int, body: bytes, excerpt: str | None) -> None:
    wiki.status, wiki.body = status, body
    if excerpt is None:
        await WikipediaSearch(query="x").run(SCOPE)
        return
    with pytest.raises(ToolError) as caught:
        await WikipediaSearch(query="x").run(SCOPE)
    assert excerpt in caught.value.message
    assert "127.0.0.1" not in caught.value.message


async def test_an_unreachable_wikipedia_is_reported_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_WIKIPEDIA_URL", "http://127.0.0.1:9/{language}")
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        await WikipediaSearch(query="x").run(SCOPE)
    assert "127.0.0.1" not in caught.value.message
    assert "language" not in caught.value.message
    with pytest.raises(ToolError, match="'xx' Wikipedia cannot be reached"):
        await WikipediaSearch(query="x", language="xx").run(SCOPE)


@pytest.mark.parametrize(
    "language", ["", "e", "EN", "en.evil", "en/..", "en@evil", "en:80", "e" * 13, "en-", "-en", "en\n", "ü", "xn--x"]
)
def test_a_language_cannot_lead_to_another_host(language: str) -> None:
    with pytest.raises(ValidationError):
        WikipediaSearch(query="x", language=language)


@pytest.mark.parametrize("title", ["", "a|b", "a\nb", "a\x1fb", "x" * 256])
def test_an_invalid_title_is_refused(title: str) -> None:
    with pytest.raises(ValidationError):
        WikipediaSummary(title=title)


def test_the_default_is_wikipedia() -> None:
    assert wikipedia._DEFAULT_URL == "https://{language}.wikipedia.org"
