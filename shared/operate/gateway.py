"""Send requests to a gateway from outside, as its clients do."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx

from spass.sdk.endpoint import Endpoint

Json: TypeAlias = dict[str, Any]

_POLL_SECONDS: Final = 1


class StepFailed(Exception):
    """The gateway did not answer as it should. The message says how."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway. ``client`` sends the token, ``stranger`` does not. Neither has a time limit: the steps have."""

    endpoint: Endpoint
    client: httpx.AsyncClient
    stranger: httpx.AsyncClient

    @classmethod
    @asynccontextmanager
    async def connect(cls, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None) -> AsyncIterator["Gateway"]:
        """Yield the gateway at ``endpoint``. The default of ``transport`` is the network."""
        # A proxy of the environment cannot reach the addresses of this machine.
        open_client = partial(
            httpx.AsyncClient,
            base_url=endpoint.url,
            timeout=None,
            trust_env=not endpoint.is_loopback,
            transport=transport,
        )
        async with open_client(headers=endpoint.headers) as client, open_client() as stranger:
            yield cls(endpoint, client, stranger)

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, status: int = 200) -> Json:
        """Return the JSON of an answer. Raise StepFailed if it has another status."""
        return read(await self.client.request(method, path, json=body), status)

    async def refusal(self, method: str, path: str, status: int, code: str, token: str | None = None) -> httpx.Headers:
        """Return the headers of a refusal of a request without the token, or with another one."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await self.stranger.request(method, path, headers=headers)
        found = read(answer, status)["error"]["code"]
        if found != code:
            raise StepFailed(f"{_described(answer)} the code {found}, not {code}.")
        return answer.headers

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Json]:
        """Yield the events of a stream. Raise StepFailed if it is refused or ends with an error."""
        async with self.client.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                read(answer, httpx.codes.OK)
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    event: Json = json.loads(line.removeprefix("data:"))
                    if event["type"] == "error":
                        raise StepFailed(f"The stream ended with the error {event['error']['code']}: {event['error']['message']}")
                    yield event

    async def wait(self, path: str) -> Json:
        """Poll the work at ``path`` until it has ended, and return it."""
        while True:
            work = await self.call("GET", path)
            if work["status"] not in ("waiting", "queued", "running"):
                return work
            await asyncio.sleep(_POLL_SECONDS)


def check_success(work: Json) -> None:
    """Raise StepFailed if an upload, a job or a run that has ended has not succeeded."""
    if work["status"] != "succeeded":
        errors = work.get("errors") or [work["error"]]
        reasons = "; ".join(f"{error['code']}: {error['message']}" for error in errors)
        raise StepFailed(f"It ended as {work['status']}: {reasons}")


def read(answer: httpx.Response, status: int) -> Json:
    """Return the JSON of an answer with this status. Raise StepFailed with the error's code and message if it has another one."""
    if answer.status_code != status:
        raise StepFailed(f"{_described(answer)} {answer.status_code}, not {status}.{_reason(answer)}")
    found: Json = answer.json()
    return found


def _described(answer: httpx.Response) -> str:
    return f"{answer.request.method} {urlsplit(str(answer.request.url)).path} was answered with"


def _reason(answer: httpx.Response) -> str:
    """Return the code and the message of an error of the gateway. Say nothing of other bodies: a proxy may repeat the request."""
    try:
        body = answer.json()
        return f" {body['error']['code']}: {body['error']['message']} ({body['request_id']})"
    except (ValueError, LookupError, TypeError):
        return " The body is not an error of Spass."
