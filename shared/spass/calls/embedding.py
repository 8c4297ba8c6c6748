"""Embed a list of texts by several concurrent requests. Return the vectors in order, and the sum of the tokens."""

import asyncio
from collections.abc import Sequence

from spass.calls.estimate import estimate_tokens
from spass.core.errors import SpassError
from spass.core.messages import TokenUsage
from spass.core.tasks import run_concurrently
from spass.models.batching import batches
from spass.models.router import Router, RoutingRecord
from spass.models.types import CallContext, EmbeddingRequest


class EmbeddingRequests:
    """The requests for one list of texts."""

    def __init__(self, router: Router, model: str, context: CallContext) -> None:
        self._router = router
        self._model = model
        self._context = context
        self._routings: list[RoutingRecord] = []
        self._failed: RoutingRecord | None = None
        self._answered = 0

    @property
    def routing(self) -> RoutingRecord:
        """Return the attempts and the usage of all requests so far. The backend is that of the request that failed first, or else
        that of the newest request."""
        last = self._failed or (self._routings[-1] if self._routings else RoutingRecord())
        return RoutingRecord(
            last.backend,
            sum(routing.attempts for routing in self._routings),
            sum((routing.answered_usage for routing in self._routings), TokenUsage()),
            sum((routing.failed_attempt_usage for routing in self._routings), TokenUsage()),
            any(routing.estimated for routing in self._routings),
        )

    async def embed(self, texts: Sequence[str]) -> bytes:
        """Return the vectors as the ``data`` of an ``EmbeddingReply``.

        Raises:
            SpassError: the first failure of ``Router.embed``. No other request is in flight then.
        """
        limits = self._router.embedding_limits(self._model)
        parts = [*batches(texts, limits)]
        vectors = [b""] * len(parts)
        remaining = iter(enumerate(parts))

        async def embed_remaining() -> None:
            for number, batch in remaining:  # the concurrent workers share this iterator
                vectors[number] = await self._request(batch)

        await run_concurrently([embed_remaining() for _ in range(min(limits.concurrency, len(parts)))])
        if self._answered < len(parts):  # a task group ignores a task that raised CancelledError
            raise asyncio.CancelledError
        return b"".join(vectors)

    async def _request(self, texts: tuple[str, ...]) -> bytes:
        routing = RoutingRecord()
        self._routings.append(routing)
        expected = TokenUsage(sum(estimate_tokens(len(text)) for text in texts))
        try:
            reply = await self._router.embed(
                EmbeddingRequest(self._model, texts), self._context.with_expected_usage(expected), routing
            )
        except SpassError:
            self._failed = self._failed or routing
            raise
        self._answered += 1
        return reply.data
