"""The tool ``web_search`` against servers with the wire formats of SearXNG, Tavily and MediaWiki."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import ValidationError

from spass.core.errors import InternalError, StorageUnavailable
from spass.core.messages import Json, ToolCall
from spass.tenancy.config import SearchConfig
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from spass.tools.base import ToolError
from spass.tools.builtin.web_search import WebSearch
from spass.tools.search_engine import DEFAULT_URL, KeyOf, SearchEngine
from tests.unit.tools.fakes import scope_for, toolbox_of

pytestmark = pytest.mark.anyio

KEY = "tvly-0123456789abcdef0123"


@dataclass(slots=True)
class SearchServer:
    """A server that answers every request with ``answer``, and records the requests."""

    url: str = ""
    answer: HttpAnswer | Callable[[], HttpAnswer | None] = field(default_factory=lambda: json_answer({"results": []}))
    requests: list[HttpRequest] = field(default_factory=list)

    def respond(self, request: HttpRequest) -> HttpAnswer | None:
        self.requests.append(request)
        return self.answer() if callable(self.answer) else self.answer

    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.requests[0].path).query)


@pytest.fixture
def server() -> Iterator[SearchServer]:
    server = SearchServer()
    with serve(server.respond) as server.url:
        yield server


def key_of(_: str) -> str | None:
    return KEY


def wikipedia() -> SearchEngine:
    return SearchEngine(SearchConfig(), key_of)


def searxng(server: SearchServer, variable: str | None = None) -> SearchEngine:
    return SearchEngine(SearchConfig(provider="searxng", base_url=server.url, api_key_env=variable), key_of)


def tavily(server: SearchServer, key: KeyOf = key_of) -> SearchEngine:
    return SearchEngine(SearchConfig(provider="tavily", base_url=server.url, api_key_env="TAVILY_API_KEY"), key)


def page(number: int, **fields: Json) -> dict[str, Json]:
    return {"title": f"Page {number}", "url": f"https://example.org/{number}", "content": f"Text {number}.", **fields}


def results_of(result: Json) -> list[dict[str, str]]:
    assert isinstance(result, dict)
    results = result["results"]
    assert isinstance(results, list)
    assert all(isinstance(one, dict) and set(one) == {"title", "url", "snippet"} for one in results)
    return results


async def test_searxng_is_asked_for_json(server: SearchServer) -> None:
    server.answer = json_answer({"query": "berlin wall", "number_of_results": 0, "results": [page(1, engine="x", score=1.5)]})
    assert await WebSearch(query="berlin wall").run(scope_for(), searxng(server)) == {
        "source": "searxng",
        "results": [{"title": "Page 1", "url": "https://example.org/1", "snippet": "Text 1."}],
    }
    (request,) = server.requests
    assert (request.method, urlsplit(request.path).path) == ("GET", "/search")
    assert server.query() == {"q": ["berlin wall"], "format": ["json"]}
    assert "Authorization" not in request.headers


async def test_a_key_of_searxng_is_sent_as_a_bearer_token(server: SearchServer) -> None:
    await WebSearch(query="x").run(scope_for(), searxng(server, "SEARXNG_KEY"))
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_tavily_gets_the_query_the_limit_and_the_key(server: SearchServer) -> None:
    server.answer = json_answer({"query": "x", "results": [page(1, score=0.9, raw_content=None)], "response_time": 1.2})
    result = await WebSearch(query="berlin wall", max_results=3).run(scope_for(), tavily(server))
    assert result == {
        "source": "tavily",
        "results": [{"title": "Page 1", "url": "https://example.org/1", "snippet": "Text 1."}],
    }
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/search")
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert (request.json["query"], request.json["max_results"]) == ("berlin wall", 3)


async def test_without_a_provider_wikipedia_answers(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_WIKIPEDIA_URL", f"{server.url}/{{language}}")
    hits: list[Json] = [{"title": "Berlin Wall (song)", "snippet": 'The <b class="searchmatch">Berlin</b> Wall &amp; more'}, 7]
    server.answer = json_answer({"query": {"search": hits}})
    assert await WebSearch(query="berlin wall", max_results=2).run(scope_for(), wikipedia()) == {
        "source": "wikipedia",
        "results": [
            {
                "title": "Berlin Wall (song)",
                "url": f"{server.url}/en/wiki/Berlin_Wall_(song)",
                "snippet": "The Berlin Wall & more",
            }
        ],
    }
    assert (server.query()["srsearch"], server.query()["srlimit"]) == (["berlin wall"], ["2"])


def test_the_default_server_of_tavily_uses_https() -> None:
    assert DEFAULT_URL == "https://api.tavily.com"


async def test_results_are_limited_and_each_address_occurs_once(server: SearchServer) -> None:
    server.answer = json_answer({"results": [page(1), page(1, title="Again"), *map(page, range(2, 30))]})
    results = results_of(await WebSearch(query="x", max_results=4).run(scope_for(), searxng(server)))
    assert [one["title"] for one in results] == ["Page 1", "Page 2", "Page 3", "Page 4"]


async def test_texts_are_plain_and_bounded(server: SearchServer) -> None:
    hostile = page(1, title="<b>A</b>\n\x00B " + "x" * 500, content="<<<" + "<" * 50_000 + "y" * 100_000)
    server.answer = json_answer({"results": [hostile, page(2, title="", content="a &lt;b&gt; <i>c</i>\t d")]})
    started = time.monotonic()
    first, second = results_of(await WebSearch(query="x").run(scope_for(), searxng(server)))
    assert time.monotonic() - started < 2
    assert first["title"].startswith("A B xxx")
    assert (len(first["title"]), len(first["snippet"])) == (200, 500)
    assert (second["title"], second["snippet"]) == ("https://example.org/2", "a <b> c d")


async def test_a_page_with_an_endless_character_number_does_not_end_the_turn(server: SearchServer) -> None:
    number = "9" * 6000
    hostile = page(1, title=f"a &#{number}; b", content=f"&#<i>{number} &#65;&#x{'f' * 6000};")
    server.answer = json_answer({"results": [hostile]})
    (result,) = results_of(await WebSearch(query="x").run(scope_for(), searxng(server)))
    assert (result["title"], result["snippet"]) == ("a \ufffd b", "\ufffd A\ufffd")


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://example.org/x",
        "//example.org/x",
        "https://",
        "https:///x",
        "https://user:secret@example.org/",
        "https://example.org/a b",
        "https://example.org/\n",
        "https://example.org/<script>",
        "http://[::1",
        "https://example.org/" + "x" * 2000,
        "",
        7,
        None,
        ["https://example.org"],
    ],
)
async def test_results_without_an_address_of_the_web_are_left_out(server: SearchServer, url: Json) -> None:
    server.answer = json_answer({"results": [page(1, url=url), page(2), "text", None, {}]})
    results = results_of(await WebSearch(query="x").run(scope_for(), searxng(server)))
    assert [one["url"] for one in results] == ["https://example.org/2"]


async def test_a_server_that_repeats_the_key_does_not_reveal_it(server: SearchServer) -> None:
    server.answer = json_answer({"results": [page(1, title=KEY, content=f"key={KEY}."), page(2, url=f"https://a.org/?k={KEY}")]})
    result = await WebSearch(query="x").run(scope_for(), tavily(server))
    assert len(results_of(result)) == 2
    assert KEY not in json.dumps(result)


@pytest.mark.parametrize(
    ("answer", "excerpt"),
    [
        (HttpAnswer(b"<html>Not here</html>", 200, "text/html"), "not JSON"),
        (HttpAnswer(b""), "not JSON"),
        (HttpAnswer(b"[]"), "not JSON"),
        (HttpAnswer(b"\xff\xfe"), "not JSON"),
        (HttpAnswer(b"[" * 100_000), "not JSON"),
        (HttpAnswer(b'{"results": "none"}'), "without results"),
        (HttpAnswer(b'{"hits": []}'), "without results"),
        (HttpAnswer(b"{}", headers={"Content-Encoding": "gzip"}), "without results"),
        (HttpAnswer(b" " * (10 * 1024 * 1024)), "too long"),
        (HttpAnswer(b"", 301, headers={"Location": "http://169.254.169.254/latest/meta-data/"}), "redirects"),
        (HttpAnswer(b"", 302, headers={"Location": "/search2"}), "redirects"),
        (HttpAnswer(b"", 307, headers={"Location": "/search2"}), "redirects"),
        (HttpAnswer(f"wrong key {KEY}".encode(), 400), "status 400"),
        (HttpAnswer(f"wrong key {KEY}".encode(), 401), "refuses the gateway's key"),
        (HttpAnswer(b"", 404), "status 404"),
        (HttpAnswer(b"", 429), "no more searches"),
        (HttpAnswer(b"", 500), "fails at the moment"),
        (HttpAnswer(b"", 503), "fails at the moment"),
    ],
)
@pytest.mark.parametrize("provider", [searxng, tavily])
async def test_every_failure_of_a_provider_says_what_to_do(
    server: SearchServer, provider: Callable[[SearchServer], SearchEngine], answer: HttpAnswer, excerpt: str
) -> None:
    server.answer = answer
    with pytest.raises(ToolError) as caught:
        await WebSearch(query="x").run(scope_for(), provider(server))
    assert caught.value.code == "search_failed"
    assert excerpt in caught.value.message
    assert "nswer without it" in caught.value.message
    assert len(server.requests) == 1
    for hidden in (KEY, "127.0.0.1", server.url):
        assert hidden not in caught.value.message


PLAN_LIMIT = b'{"detail": {"error": "This request exceeds your plan\'s set usage limit."}}'


@pytest.mark.parametrize(
    ("provider", "answer", "reason"),
    [
        (searxng, HttpAnswer(b"<html>Forbidden</html>", 403, "text/html"), r"search\.formats"),
        (tavily, HttpAnswer(PLAN_LIMIT, 432), "no more searches"),
        (tavily, HttpAnswer(PLAN_LIMIT, 433), "no more searches"),
    ],
)
async def test_the_own_refusals_of_a_provider_say_what_to_do(
    server: SearchServer, provider: Callable[[SearchServer], SearchEngine], answer: HttpAnswer, reason: str
) -> None:
    server.answer = answer
    with pytest.raises(ToolError, match=reason):
        await WebSearch(query="x").run(scope_for(), provider(server))


async def test_a_broken_connection_is_an_error_without_the_address(server: SearchServer) -> None:
    server.answer = lambda: None
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        await WebSearch(query="x").run(scope_for(), searxng(server))
    assert "127.0.0.1" not in caught.value.message
    with pytest.raises(ToolError, match="cannot be reached"):
        await WebSearch(query="x").run(
            scope_for(), SearchEngine(SearchConfig(provider="searxng", base_url="http://127.0.0.1:9"), key_of)
        )


async def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    server: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await WebSearch(query="x").run(scope_for(), searxng(server, "SEARXNG_KEY"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("proxy", ["socks5://user:secret@127.0.0.1:9", "gopher://user:secret@x", "http://user:secret"])
async def test_a_proxy_that_cannot_be_used_does_not_end_the_turn(
    proxy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    config = SearchConfig(provider="tavily", base_url="https://search.example", api_key_env="TAVILY_API_KEY")
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        await WebSearch(query="x").run(scope_for(), SearchEngine(config, key_of))
    log = capsys.readouterr().out
    assert "proxy_settings_failed" in log
    assert "secret" not in f"{caught.value}{log}"


async def test_halves_of_surrogate_pairs_become_question_marks(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPASS_WIKIPEDIA_URL", server.url)
    server.answer = HttpAnswer(b'{"query": {"search": [{"title": "a\\ud800b", "snippet": "\\udfff"}]}}')
    expected = {"title": "a?b", "url": f"{server.url}/wiki/a%3Fb", "snippet": "?"}
    assert results_of(await WebSearch(query="x").run(scope_for(), wikipedia())) == [expected]
    server.answer = HttpAnswer(
        b'{"results": [{"title": "\xed\xa0\x80 \\ud800", "url": "https://a.example/\\ud800", "content": ""}]}'
    )
    (result,) = results_of(await WebSearch(query="x").run(scope_for(), searxng(server)))
    assert json.dumps(result, ensure_ascii=False).encode()


async def test_a_slow_server_can_be_cancelled_at_once(server: SearchServer) -> None:
    def wait() -> HttpAnswer:
        server.requests[0].wait_for_disconnect(5)
        return json_answer({"results": []})

    server.answer = wait
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await WebSearch(query="x").run(scope_for(), searxng(server))
    assert time.monotonic() - started < 2


async def test_a_silent_server_is_given_up(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.tools.http._TIMEOUT", httpx.Timeout(0.2))

    def wait() -> HttpAnswer:
        server.requests[0].wait_for_disconnect(5)
        return json_answer({"results": []})

    server.answer = wait
    with pytest.raises(ToolError, match="did not answer in time"):
        await WebSearch(query="x").run(scope_for(), searxng(server))


async def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server: SearchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip() -> Iterator[bytes]:
        while True:
            time.sleep(0.05)
            yield b" "

    server.answer = lambda: HttpAnswer(drip())
    monkeypatch.setattr(WebSearch, "timeout", 0.5)
    engine = searxng(server)
    box = toolbox_of(search_engine=engine)
    started = time.monotonic()
    outcome = await box.execute(scope_for(), ToolCall("c", "web_search", '{"query": "x"}'), allowed=["web_search"])
    assert time.monotonic() - started < 3
    assert "tool_timeout" in outcome.message.content


@pytest.mark.parametrize(
    ("key", "excerpt"),
    [
        ("", "has no key"),
        (None, "has no key"),
        ("tvly-ü23456789", "not valid"),
        ("tvly 123456789", "not valid"),
        ("k\n", "not valid"),
    ],
)
async def test_a_missing_or_broken_key_is_an_error_and_nothing_is_sent(
    server: SearchServer, key: str | None, excerpt: str
) -> None:
    with pytest.raises(ToolError, match=excerpt) as caught:
        await WebSearch(query="x").run(scope_for(), tavily(server, lambda _: key))
    assert server.requests == []
    assert "tvly" not in caught.value.message


@pytest.mark.parametrize("error", [StorageUnavailable("The storage did not answer."), InternalError("The call was refused.")])
async def test_a_key_that_cannot_be_read_does_not_end_the_turn(server: SearchServer, error: Exception) -> None:
    def fail(_: str) -> str:
        raise error

    with pytest.raises(ToolError, match="cannot be read"):
        await WebSearch(query="x").run(scope_for(), tavily(server, fail))


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": ""},
        {"query": "  "},
        {"query": "x" * 401},
        {},
        {"query": "x", "max_results": 0},
        {"query": "x", "max_results": 21},
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Json]) -> None:
    with pytest.raises(ValidationError):
        WebSearch.model_validate(arguments)


def test_a_query_that_is_too_long_is_told_its_characters() -> None:
    with pytest.raises(ValidationError, match="at most 400 characters"):
        WebSearch.model_validate({"query": "x" * 401})
