"""The tool ``web_search`` over HTTP. The key of its provider is in no answer, no error and no log line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from spass.models.provider_keys import ProviderKeys
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer, serve
from tests.functions.gateway import CONFIG, Gateway, Reply

KEY = "tvly-dev-0123456789abcdef0123"
SEARCH = {"name": "web_search", "arguments": {"query": "berlin wall"}}


@dataclass
class Provider:
    """A server of Tavily's protocol. It records the requests."""

    url: str = ""
    answer: HttpAnswer = field(default_factory=lambda: json_answer({"results": []}))
    requests: list[HttpRequest] = field(default_factory=list)

    def respond(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        return self.answer


@pytest.fixture
def provider(gateway: Gateway) -> Iterator[Provider]:
    provider = Provider()
    with serve(provider.respond) as provider.url:
        search = f"search: {{provider: tavily, base_url: {provider.url}, api_key_env: SEARCH_KEY}}\n"
        gateway.services.settings.config.write_text(CONFIG + search)
        yield provider


def search(gateway: Gateway) -> Reply:
    return gateway.send("POST", "/v1/tools/execute", body=SEARCH)


def test_a_search_is_answered_with_the_results_of_the_provider(
    gateway: Gateway, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", KEY)
    provider.answer = json_answer({"results": [{"title": "Wall", "url": "https://example.org/wall", "content": f"Fell. {KEY}"}]})
    reply = search(gateway)
    assert reply.status == 200
    assert reply.json["result"]["source"] == "tavily"
    (result,) = reply.json["result"]["results"]
    assert (result["title"], result["url"]) == ("Wall", "https://example.org/wall")
    assert KEY not in reply.text
    assert provider.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_a_failing_provider_is_a_result_that_says_what_to_do(
    gateway: Gateway, provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEARCH_KEY", KEY)
    provider.answer = HttpAnswer(f"<html>{KEY}</html>".encode(), 500, "text/html")
    reply = search(gateway)
    assert (reply.status, reply.json["result"]["error"]["code"]) == (200, "search_failed")
    assert "nswer without it" in reply.json["result"]["error"]["message"]
    printed = capsys.readouterr()
    assert KEY not in reply.text + printed.out + printed.err


def test_a_missing_key_is_named_in_the_log_only(
    gateway: Gateway, provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    reply = search(gateway)
    assert "has no key" in reply.json["result"]["error"]["message"]
    assert "SEARCH_KEY" not in reply.text
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["set"] for line in lines if line.get("event") == "key_missing"] == [["SEARCH_KEY"]]
    assert provider.requests == []


def test_a_key_of_the_parameter_store_is_used_and_redacted_from_answers(
    gateway: Gateway, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCH_KEY", raising=False)

    def read(names: Sequence[str]) -> Mapping[str, str]:
        assert "/spass/test/SEARCH_KEY" in names
        return {"/spass/test/SEARCH_KEY": KEY}

    gateway.services.keys = ProviderKeys(["SEARCH_KEY"], "/spass/test/", read)
    search(gateway)
    assert provider.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    gateway.model.script = f"The key is {KEY}."
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
    reply = gateway.send("POST", "/v1/chat/completions", body=body)
    assert reply.status == 200
    assert KEY not in reply.text
