"""``Idempotency-Key`` at the edge: whose key it is, and an answer that is given once and then again."""

import hashlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from spass.aws import idempotency
from spass.aws.idempotency import Claim, IdempotentRequest, StoredAnswer
from spass.aws.leases import renewing
from spass.core.errors import InvalidRequest, SpassError
from spass.core.messages import Json
from spass.tenancy.identity import Caller
from spass.web.exchange import Exchange
from spass.web.json import json_response
from spass.web.sse import Chunk, stream_response

REPLAYED_HEADER: Final = "Idempotency-Replayed"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


Restore: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]
"""Makes the body of an answer out of what was kept of it."""


@dataclass(frozen=True, slots=True)
class RouteResult:
    """What a route's work came to. ``kept``: the work has written ``body`` under its claim itself, with what made it true.
    ``failed``: it is not kept, so the same key may try again. ``status``: where it is not the route's usual one. ``record``: what
    is kept in place of this answer.
    """

    body: Mapping[str, Json]
    headers: Mapping[str, str] = field(default_factory=dict)
    kept: bool = False
    failed: bool = False
    status: int | None = None
    record: StoredAnswer | None = None


def idempotent_request(request: Request, caller: Caller, body: bytes) -> IdempotentRequest | None:
    """The identity of a POST that names a key; None for all others.

    Raises:
        InvalidRequest: the key is not one.
    """
    if request.method != "POST":
        return None
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise InvalidRequest("Idempotency-Key is sent once and is 1 to 255 visible ASCII characters.", param="Idempotency-Key")
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return IdempotentRequest(_digest(caller, request.method, path, values[0]), hashlib.sha256(body).hexdigest())


def request_for_path(request: Request, exchange: Exchange, path: str) -> IdempotentRequest | None:
    """The same request, sent to ``path`` as a client does that follows a redirect; None if it names no key."""
    if exchange.idempotent is None:
        return None
    digest = _digest(exchange.scope.caller, request.method, path, request.headers["idempotency-key"])
    return IdempotentRequest(digest, exchange.idempotent.body_hash)


def _digest(caller: Caller, method: str, path: str, key: str) -> str:
    owner = [caller.tenant, caller.identity.token_id, caller.user, method, path, key]
    return hashlib.sha256(json.dumps(owner).encode()).hexdigest()


async def run_idempotently(
    exchange: Exchange,
    work: Callable[[Claim | None], Awaitable[RouteResult]],
    *,
    status: int = 200,
    restore: Restore | None = None,
) -> Response:
    """Return the answer of ``work``, or the kept one if this request was carried out before. ``restore`` makes the answer out of
    the ``record`` that was kept of it.

    Raises:
        IdempotencyInProgress, IdempotencyKeyReused: see ``spass.aws.idempotency``.
    """
    if exchange.idempotent is None:
        answer = await work(None)
        return json_response(answer.body, status=answer.status or status, headers=answer.headers)
    claim = await idempotency.acquire(exchange.scope.store, exchange.idempotent)
    if isinstance(claim, StoredAnswer):
        body = await restore(claim.body) if restore else claim.body
        return replay_response(replace(claim, body=body), status=status)
    try:
        async with renewing(claim.renew):
            answer = await work(claim)
            if answer.failed:
                await release(claim)
            elif not answer.kept:
                headers = {**answer.headers, **exchange.cost_headers()}
                await claim.complete(answer.record or StoredAnswer(answer.body, headers, answer.status))
    except Exception:
        await release(claim)
        raise
    return json_response(answer.body, status=answer.status or status, headers=answer.headers)


async def stream_idempotently(
    exchange: Exchange,
    client: Receive,
    chunks: Callable[[], AsyncGenerator[Chunk, None]],
    *,
    collect: Callable[[Sequence[Chunk]], Mapping[str, Json]],
    replay: Callable[[Mapping[str, Json]], Iterable[Chunk]],
) -> Response:
    """The stream of ``chunks``, or a replay of the answer that an earlier one amounted to (``collect``).

    A client that leaves, as ``client`` tells, ends the stream, unless it has named a key: then the answer is completed and kept
    for it.

    Raises:
        IdempotencyInProgress, IdempotencyKeyReused: see ``spass.aws.idempotency``.
        SpassError: the work failed before its first chunk.
        ClientDisconnect: the client left before it, and has named no key.
    """
    if exchange.idempotent is None:
        return await stream_response(chunks(), exchange.request_id, redact=exchange.services.redact, client=client)
    claim = await idempotency.acquire(exchange.scope.store, exchange.idempotent)
    if isinstance(claim, StoredAnswer):
        return await stream_response(_as_async(replay(claim.body)), exchange.request_id, headers={REPLAYED_HEADER: "true"})
    return await stream_response(_record_stream(claim, chunks, collect), exchange.request_id, redact=exchange.services.redact)


async def _as_async(chunks: Iterable[Chunk]) -> AsyncGenerator[Chunk, None]:
    for chunk in chunks:
        yield chunk


async def _record_stream(
    claim: Claim,
    chunks: Callable[[], AsyncGenerator[Chunk, None]],
    collect: Callable[[Sequence[Chunk]], Mapping[str, Json]],
) -> AsyncGenerator[Chunk, None]:
    """The chunks; it ends only after their answer is kept, so that ``[DONE]`` is true."""
    seen: list[Chunk] = []
    try:
        async with renewing(claim.renew), aclosing(chunks()) as source:
            async for chunk in source:
                seen.append(chunk)
                yield chunk
            await claim.complete(StoredAnswer(collect(seen), {}))
    except Exception:
        await release(claim)
        raise


async def release(claim: Claim) -> None:
    """Give the claim up; if that fails too, it falls free by itself within a minute."""
    with suppress(SpassError):
        await claim.release()


def replay_response(answer: StoredAnswer, *, status: int = 200) -> Response:
    """A kept answer, given again."""
    return json_response(answer.body, status=answer.status or status, headers={**answer.headers, REPLAYED_HEADER: "true"})
