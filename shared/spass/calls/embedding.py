"""Embed a list of texts by several concurrent requests."""

import asyncio
from collections.abc import Sequence

from spass.core.errors import SpassError
from spass.core.messages import TokenUsage
from spass.core.tasks import run_concurrently
from spass.models.attempt import estimate_tokens
from spass.models.batching import batches
from spass.models.router import Router, RoutingRecord
from spass.models.types import CallContext, EmbeddingRequest


async def embed_texts(router: Router, model: str, texts: Sequence[str], context: CallContext, routing: RoutingRecord) -> bytes:
    """Return the vectors of ``texts`` as the ``data`` of an ``EmbeddingReply``.

    Add the attempts and the tokens of all requests to ``routing``, also on failure. Its backend is that of the request that
    failed first, or else that of the newest request.

    Raises:
        SpassError: the first failure of ``Router.embed``. No other request is in flight then.
    """
    limits = router.embedding_limits(model)
    parts = [*batches(texts, limits)]
    vectors: dict[int, bytes] = {}
    routings: list[RoutingRecord] = []
    failed: list[RoutingRecord] = []
    remaining = iter(enumerate(parts))

    async def embed_remaining() -> None:
        for number, batch in remaining:  # the concurrent workers share this iterator
            routings.append(own := RoutingRecord())
            expected = TokenUsage(sum(estimate_tokens(len(text)) for text in batch))
            try:
                reply = await router.embed(EmbeddingRequest(model, batch), context.with_expected_usage(expected), own)
            except SpassError:
                failed.append(own)
                raise
            vectors[number] = reply.data

    try:
        await run_concurrently([embed_remaining() for _ in range(min(limits.concurrency, len(parts)))])
    finally:
        for one in routings:
            routing.add(one)
        routing.backend = next((one.backend for one in [*failed, *reversed(routings)]), None)
    if len(vectors) < len(parts):  # a task group ignores a task that raised CancelledError
        raise asyncio.CancelledError
    return b"".join(vectors[number] for number in range(len(parts)))
