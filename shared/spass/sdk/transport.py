"""Send requests to a gateway and translate every failure into an error of the client."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from spass.sdk.endpoint import Endpoint
from spass.sdk.errors import SpassApiError, SpassUnreachable, invalid_answer
from spass.sdk.event_reader import Event, read_events
from spass.tenancy.response_model import ResponseModel

M = TypeVar("M", bound=ResponseModel)
JsonObject: TypeAlias = dict[str, Any]

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 300.0
"""The gateway ends a blocking request after 270 seconds."""
SILENCE_SECONDS: Final = 60.0
"""A stream has a comment every 15 seconds."""


class Transport:
    """Connections to one gateway. It does not follow redirects and does not repeat requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http = _open_client(endpoint)

    def close(self) -> None:
        self._http.close()

    def check_open(self) -> None:
        """Raise RuntimeError after ``close``."""
        if self._http.is_closed:
            raise RuntimeError("The client is closed. Create another one: Spass().")

    def get(self, path: str, model: type[M]) -> M:
        """Return the answer to a GET. Fields that a newer gateway added are ignored."""
        return check_answer(self.send("GET", path), model)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> JsonObject:
        """Return the answer to a request."""
        with self._answer(method, path, body) as response:
            return _read_answer(response)

    def pages(self, path: str) -> Iterator[JsonObject]:
        """Yield the pages of a list."""
        cursors, target = {""}, path
        while True:
            page = self.send("GET", target)
            yield page
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return
            if not isinstance(cursor, str) or cursor in cursors:  # another server answers each request with the same page
                raise invalid_answer(httpx.codes.OK)
            cursors.add(cursor)
            target = f"{path}?cursor={quote(cursor, safe='', errors='replace')}"

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[Event, None, JsonObject | None]:
        """Yield the events of a streamed answer. If the answer is a redirect instead, return its body."""
        with self._answer("POST", path, body, silence=SILENCE_SECONDS) as response:
            if response.status_code == httpx.codes.PERMANENT_REDIRECT:
                return _read_json(response)
            yield from read_events(_read_stream(response))
        return None

    @contextmanager
    def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Generator[Iterator[bytes] | None, None, None]:
        """Yield the bytes of a streamed answer as they arrive, or None if the answer is 204."""
        with self._answer(method, path, body, headers, silence=SILENCE_SECONDS) as response:
            yield None if response.status_code == httpx.codes.NO_CONTENT else _read_stream(response)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        silence: float = ANSWER_SECONDS,
    ) -> Generator[httpx.Response, None, None]:
        """Yield the answer to a request. Its body has not been read. Raise SpassUnreachable if nothing answered, or the
        connection broke while the block read the body."""
        self.check_open()
        timeout = httpx.Timeout(silence, connect=CONNECT_SECONDS)
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        try:
            with self._http.stream(method, self.endpoint.url + path, content=content, headers=sent, timeout=timeout) as response:
                yield response
            return
        except httpx.TimeoutException:
            problem = f"No answer from {self.endpoint.url} in time."
        except httpx.ConnectError as error:
            problem = f"No gateway answers at {self.endpoint.url}: {error}."
        except (httpx.TransportError, httpx.DecodingError, httpx.StreamError):
            problem = f"The connection to {self.endpoint.url} broke before the answer was complete."
        # Raised after the ``except`` block, because the error of httpx holds the request with the token.
        self.check_open()
        raise SpassUnreachable(problem)


def _open_client(endpoint: Endpoint) -> httpx.Client:
    """Return a client without connections. Raise ValueError if a variable for proxies or certificates is wrong. The message does
    not show it: a proxy may have a password."""
    try:
        return httpx.Client(
            headers=endpoint.headers,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            # A proxy of the environment cannot reach the addresses of this machine.
            trust_env=not endpoint.is_loopback,
        )
    except ImportError:
        problem = "The proxy (ALL_PROXY, HTTP_PROXY or HTTPS_PROXY) speaks SOCKS. Run: pip install 'httpx[socks]'"
    except OSError:
        problem = "The certificates (SSL_CERT_FILE or SSL_CERT_DIR) cannot be read. Correct or unset the variable."
    except (ValueError, httpx.InvalidURL):
        problem = "The proxy (ALL_PROXY, HTTP_PROXY or HTTPS_PROXY) is not an address. Write it like http://host:8080."
    raise ValueError(problem)


def check_answer(body: JsonObject, model: type[M]) -> M:
    """Return a successful answer as ``model``. Ignore fields that the model does not have. Raise SpassApiError if it is not such
    an answer."""
    try:
        return model.model_validate(body, extra="ignore")
    except ValidationError:
        raise invalid_answer(httpx.codes.OK) from None


def _read_answer(response: httpx.Response) -> JsonObject:
    """Return the body of a successful answer. Raise SpassApiError for an error, a redirect, or another server's answer."""
    body = _read_json(response)
    if not response.is_success:
        raise SpassApiError.from_envelope(response.status_code, body)
    return body


def _read_stream(response: httpx.Response) -> Iterator[bytes]:
    """Return the bytes of a stream of events as they arrive. Raise SpassApiError if the answer is not a stream."""
    if not response.is_success:
        raise SpassApiError.from_envelope(response.status_code, _read_json(response))
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise invalid_answer(response.status_code)
    return response.iter_bytes()


def _read_json(response: httpx.Response) -> JsonObject:
    try:
        body = json.loads(response.read())
    except (ValueError, RecursionError):
        raise invalid_answer(response.status_code) from None
    if not isinstance(body, dict):
        raise invalid_answer(response.status_code)
    return body
