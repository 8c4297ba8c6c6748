"""``Idempotency-Key`` in HTTP: identify a request, do its work once, and send the stored answer to a repeated request."""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from spass.core.errors import InvalidRequest, SpassError
from spass.core.messages import Json
from spass.journal.frames import DONE, Frame, json_frame
from spass.store import idempotency
from spass.store.idempotency import Claim, IdempotentRequest, StoredResponse
from spass.tenancy.identity import Caller
from spass.tenancy.response_model import ResponseModel
from spass.web.bodies import json_response
from spass.web.exchange import Exchange
from spass.web.sse import stream_response, yield_frames

REPLAYED_HEADER: Final = "Idempotency-Replayed"
_KEY: Final = re.compile(r"[!-~]{1,255}")

HEADER: Final = {
    "name": "Idempotency-Key",
    "description": "A request is carried out once per key. For 24 hours, the same key and body get the stored answer.",
    "schema": {"type": "string", "pattern": f"^{_KEY.pattern}$"},
}
"""The header as OpenAPI describes it."""

Chunk: TypeAlias = dict[str, Json]
"""A chunk of a stream, as JSON."""
Restore: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Return the body of the response, given the body of the stored answer."""


@dataclass(frozen=True, slots=True)
class RouteResult:
    """The answer of a route, and how to store it.

    ``is_stored``: the work has already stored ``body`` under its claim, in the transaction of its effect. ``discard``: do not
    store the answer, so that the client may repeat the request with the same key. ``answer_to_store``: store this in place of
    ``body``. ``status``: None for the route's usual status.
    """

    body: ResponseModel
    headers: Mapping[str, str] = field(default_factory=dict)
    is_stored: bool = False
    discard: bool = False
    status: int | None = None
    answer_to_store: StoredResponse | None = None


def applies_to(path: str) -> bool:
    """Return whether the key has an effect on the routes at ``path``. Under ``/c1``, ``message_id`` identifies a request."""
    return not path.startswith("/c1/")


def identify_request(request: Request, caller: Caller, body: bytes) -> IdempotentRequest | None:
    """Return the identity of a request with a key; None without one. Raise InvalidRequest if the key is malformed."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise InvalidRequest("Send Idempotency-Key once, as 1 to 255 visible ASCII characters.", param="Idempotency-Key")
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return IdempotentRequest(
        caller.tenant,
        caller.identity.token_id,
        caller.user,
        request.method,
        path,
        values[0],
        hashlib.sha256(body).hexdigest(),
    )


async def run_idempotently(
    exchange: Exchange,
    work: Callable[[Claim | None], Awaitable[RouteResult | ResponseModel]],
    *,
    status: int = 200,
    restore: Restore | None = None,
) -> Response:
    """Do the ``work`` and return its answer, or return the stored answer if an earlier request did the work. ``restore`` makes
    the response's body from the stored one. Raise IdempotencyInProgress if another request with this key is running, and
    IdempotencyKeyReused if an earlier request with this key had another body."""
    if exchange.idempotency is None:
        return _response(_as_result(await work(None)), status)
    claim = await idempotency.acquire(exchange.scope.store, exchange.idempotency)
    if isinstance(claim, StoredResponse):
        body = await restore(claim.body) if restore else claim.body
        return replay_response(replace(claim, body=body), status=status)
    async with claim.held():
        answer = _as_result(await work(claim))
        if answer.discard:
            await _release_quietly(claim)
        elif not answer.is_stored:
            headers = {**answer.headers, **exchange.cost_headers()}
            await claim.complete(answer.answer_to_store or StoredResponse(answer.body.to_dict(), headers, answer.status))
    return _response(answer, status)


def _as_result(answer: RouteResult | ResponseModel) -> RouteResult:
    return answer if isinstance(answer, RouteResult) else RouteResult(answer)


def _response(answer: RouteResult, status: int) -> Response:
    return json_response(answer.body, status=answer.status or status, headers=answer.headers)


async def stream_idempotently(
    exchange: Exchange,
    client: Receive,
    frames: Callable[[], AsyncGenerator[Frame, None]],
    *,
    answer: Callable[[], ResponseModel],
    replay: Callable[[Mapping[str, Json]], Iterable[Chunk]],
) -> Response:
    """Return the stream of ``frames``, which end with ``DONE``, or replay the stored answer of an earlier one. ``answer`` returns
    the answer to store when the frames have ended. ``replay`` returns the chunks of a stored one.

    ``client`` is the ASGI receive function. Without a key, the stream ends when the client disconnects. With a key it continues,
    so that the answer is stored for the client's retry.

    Raises:
        SpassError: the work failed before its first chunk, or as for ``run_idempotently``.
        ClientDisconnect: the client disconnected before the first chunk, and the request has no key.
    """
    if exchange.idempotency is None:
        return await stream_response(frames(), exchange.request_id, redact=exchange.services.redact, client=client)
    claim = await idempotency.acquire(exchange.scope.store, exchange.idempotency)
    if isinstance(claim, StoredResponse):
        replayed = yield_frames([*map(json_frame, replay(claim.body)), DONE])
        return await stream_response(replayed, exchange.request_id, headers={REPLAYED_HEADER: "true"})
    return await stream_response(_record_stream(claim, frames, answer), exchange.request_id, redact=exchange.services.redact)


async def _record_stream(
    claim: Claim,
    frames: Callable[[], AsyncGenerator[Frame, None]],
    answer: Callable[[], ResponseModel],
) -> AsyncGenerator[Frame, None]:
    """Yield the frames. End only after their answer is stored, because ``DONE`` promises a replay."""
    async with claim.held(), aclosing(frames()) as source:
        async for frame in source:
            if frame is DONE:
                await claim.complete(StoredResponse(answer().to_dict(), {}))
            yield frame


async def _release_quietly(claim: Claim) -> None:
    """Release the claim. If that fails, it expires with its lease within a minute."""
    with suppress(SpassError):
        await claim.release()


def replay_response(answer: StoredResponse, *, status: int = 200) -> Response:
    """Return the stored answer as a response."""
    return json_response(answer.body, status=answer.status or status, headers={**answer.headers, REPLAYED_HEADER: "true"})
