"""Nothing is connected to that was not judged, whatever a URL, a name or a redirect is."""

import socket
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address

import httpx
import pytest

from spass.core.effects import Page
from spass.tools import page_fetcher
from spass.tools.page_fetcher import PageFetcher, resolve_name
from tests.hostile_urls import RESOLUTIONS, hostile_urls, is_public_by_bytes
from tests.unit.tools.internet import PUBLIC

pytestmark = pytest.mark.anyio

HOSTILE = [*hostile_urls()]


class Recording(httpx.AsyncBaseTransport):
    """Answer each request with the next of ``answers``, and the last one from then on."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = [*answers]
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.requests]


def page(text: str = "Secret.", content_type: str | None = "text/plain", status: int = 200) -> httpx.Response:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return httpx.Response(status, headers=headers, stream=Body([text.encode()]))


class Body(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


def redirect(location: str, status: int = 302) -> httpx.Response:
    return httpx.Response(status, headers={b"Location": location.encode()}, stream=Body([]))


async def resolve_all(name: str) -> Sequence[str]:
    """Resolve as a careless resolver does: every spelling of an address is one, every other name is public."""
    if name in RESOLUTIONS:
        return RESOLUTIONS[name]
    if "localhost" in name or name in ("metadata", "instance-data"):
        return ["127.0.0.1"]
    if name.endswith((".internal", ".local", ".lan", ".svc", ".localdomain")):
        return ["10.1.2.3"]
    try:
        return [socket.inet_ntoa(socket.inet_aton(name))]
    except (OSError, UnicodeError):
        return [PUBLIC]


async def fetch(url: str, *answers: httpx.Response) -> tuple[Page, Recording]:
    transport = Recording(*answers)
    return await PageFetcher(resolve_all, lambda: transport).fetch(url, 4000), transport


def test_the_corpus_has_more_than_300_urls() -> None:
    assert len({*HOSTILE}) == len(HOSTILE) > 300


async def test_a_hostile_url_connects_to_nothing_and_there_is_a_reason() -> None:
    for url in HOSTILE:
        found, transport = await fetch(url, page())
        assert (transport.hosts, found.text) == ([], ""), url
        assert found.error, url
        assert found.error.endswith("."), url


async def test_a_redirect_to_a_hostile_url_connects_to_nothing_more() -> None:
    for url in HOSTILE:
        if not url.startswith(("http://", "https://", "file:", "ftp:", "data:")) or not url.isprintable() or url == "http://":
            continue  # relative to the first page
        found, transport = await fetch("http://public.example/", redirect(url), page())
        assert (transport.hosts, found.text) == ([PUBLIC], ""), url
        assert found.error, url


@pytest.mark.parametrize(
    ("url", "host", "name", "target"),
    [
        ("http://public.example/a?b=c#d", PUBLIC, "public.example", b"/a?b=c"),
        ("https://Public.Example./", PUBLIC, "public.example", b"/"),
        ("https://public.example:443", PUBLIC, "public.example", b"/"),
        ("http://public.example:443/", PUBLIC, "public.example:443", b"/"),
        ("https://münchen.example/straße", PUBLIC, "xn--mnchen-3ya.example", b"/stra%C3%9Fe"),
        ("http://8.8.8.8/", "8.8.8.8", "8.8.8.8", b"/"),
        ("https://[2606:4700::1111]/", "2606:4700::1111", "[2606:4700::1111]", b"/"),
        ("http://a_b.example/", PUBLIC, "a_b.example", b"/"),
        ("http://1.2.3.4.example/", PUBLIC, "1.2.3.4.example", b"/"),
    ],
)
async def test_a_public_url_is_fetched_from_the_judged_address_by_its_name(url: str, host: str, name: str, target: bytes) -> None:
    found, transport = await fetch(url, page())
    assert found == Page("Secret.")
    (request,) = transport.requests
    assert (request.url.host, request.headers["host"], request.url.raw_path) == (host, name, target)
    assert request.extensions["sni_hostname"] == name.removesuffix(":443").strip("[]")
    assert {"cookie", "authorization", "referer"}.isdisjoint(request.headers)
    assert is_public_by_bytes(ip_address(host).packed)


async def test_a_name_is_resolved_once_so_a_second_answer_leads_nowhere() -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"], ["10.0.0.1"]]
    asked: list[str] = []

    async def rebind(name: str) -> Sequence[str]:
        asked.append(name)
        return answers.pop(0)

    transport = Recording(page())
    found = await PageFetcher(rebind, lambda: transport).fetch("http://rebind.example/", 4000)
    assert (found.text, transport.hosts, asked) == ("Secret.", ["93.184.216.34"], ["rebind.example"])
    assert (await PageFetcher(rebind, lambda: transport).fetch("http://rebind.example/", 4000)).error
    assert transport.hosts == ["93.184.216.34"]


async def test_a_redirect_is_resolved_and_judged_anew() -> None:
    answers = {"first.example": ["93.184.216.34"], "second.example": ["1.1.1.1"], "third.example": ["1.1.1.1", "::1"]}

    async def resolve(name: str) -> Sequence[str]:
        return answers[name]

    for last, hosts in (("second", ["93.184.216.34", "1.1.1.1"]), ("third", ["93.184.216.34"])):
        transport = Recording(redirect(f"https://{last}.example/x"), page())
        found = await PageFetcher(resolve, lambda transport=transport: transport).fetch("http://first.example/", 4000)  # type: ignore[misc]
        assert (transport.hosts, bool(found.error)) == (hosts, last == "third")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_three_redirects_are_followed_and_a_fourth_is_not(status: int) -> None:
    for number in range(5):
        found, transport = await fetch(
            "http://public.example/0", *[redirect(f"{at + 1}", status) for at in range(number)], page()
        )
        assert [request.url.path for request in transport.requests] == [f"/{at}" for at in range(min(number, 3) + 1)]
        assert found == (Page("Secret.") if number <= 3 else Page(error="The page redirects more than 3 times."))


async def test_the_first_ipv4_address_is_used_because_not_every_network_has_ipv6() -> None:
    async def resolve(_: str) -> Sequence[str]:
        return ["2606:4700::1111", "1.1.1.1", "1.0.0.1"]

    transport = Recording(page())
    await PageFetcher(resolve, lambda: transport).fetch("http://both.example/", 4000)
    assert transport.hosts == ["1.1.1.1"]


@pytest.mark.parametrize(
    ("content_type", "is_text"),
    [
        ("text/html; charset=utf-8", True),
        ("TEXT/HTML", True),
        ("text/markdown", True),
        ("application/json", True),
        ("application/xhtml+xml", True),
        ("application/rss+xml", True),
        ("application/ld+json", True),
        ("application/yaml", True),
        ("application/octet-stream", False),
        ("application/pdf", False),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", False),
        ("image/svg+xml", False),
        ("image/png", False),
        ("video/mp4", False),
        ("multipart/form-data", False),
        ("", False),
        (None, False),
        ("text/", False),
        ("text/html, text/html", False),
    ],
)
async def test_only_text_is_read(content_type: str | None, is_text: bool) -> None:
    found, _ = await fetch("http://public.example/", page("<rss>Secret.</rss>", content_type))
    assert ("Secret." in found.text) == is_text
    assert found.error == (None if is_text else "The page is not text.")


@pytest.mark.parametrize("status", [199, 204, 304, 400, 401, 404, 429, 500, 503])
async def test_a_status_without_a_page_is_the_reason(status: int) -> None:
    found, _ = await fetch("http://public.example/", page("Secret.", status=status))
    if status == 204:
        assert found.text == "Secret."  # whatever the server sends after it
    else:
        assert found.error == f"The host answered with status {status}."


async def test_a_redirect_without_an_address_is_a_status() -> None:
    found, _ = await fetch("http://public.example/", page(status=302))
    assert found.error == "The host answered with status 302."


async def test_no_reason_quotes_the_answer() -> None:
    for answer in (
        redirect("http://127.0.0.1/secret-path"),
        redirect("http://[secret"),
        page("secret", "secret/type"),
        page(status=418),
    ):
        found, _ = await fetch("http://public.example/", answer)
        assert found.error
        assert "secret" not in found.error
        assert "127" not in found.error


async def test_a_private_name_and_a_missing_name_have_the_same_reason() -> None:
    private, _ = await fetch("http://private-0.example/")
    missing, _ = await fetch("http://none.example/")
    assert private == missing == Page(error="The host has no public address.")


async def test_only_the_characters_asked_for_are_returned() -> None:
    found = await PageFetcher(resolve_all, lambda: Recording(page("é" * 5000))).fetch("http://public.example/", 4000)
    assert found.text == "é" * 4000


async def test_a_page_without_text_says_so() -> None:
    found, _ = await fetch("http://public.example/", page("<script>x</script>", "text/html"))
    assert found == Page(error="The page has no text.")


async def test_the_system_resolver_answers_for_whole_names_and_not_at_all_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def getaddrinfo(host: object, *_: object, **__: object) -> object:
        asked.append(host)
        if host == "gone.example.":
            raise socket.gaierror
        v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2606:4700::1111", 0, 0, 0))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("1.1.1.1", 0)), v6, v6]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await resolve_name("public.example") == ("1.1.1.1", "2606:4700::1111")
    assert await resolve_name("gone.example") == ()
    assert asked == ["public.example.", "gone.example."]


def test_the_limits_are_those_of_the_contract() -> None:
    assert (page_fetcher.SECONDS, page_fetcher.MAX_BYTES, page_fetcher.MAX_REDIRECTS) == (10, 2 * 1024 * 1024, 3)
