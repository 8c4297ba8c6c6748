"""The requests that embedding a list of texts takes: several in flight, their vectors in order, what they took summed up."""

import asyncio
from collections.abc import Iterator, Sequence

from spass.aws.tasks import run_concurrently
from spass.calls.estimate import estimate_tokens
from spass.core.errors import SpassError
from spass.core.messages import TokenUsage
from spass.llm.batching import batches
from spass.llm.router import Router, RoutingRecord
from spass.llm.types import CallContext, EmbeddingRequest


class EmbeddingRequests:
    """For one list of texts. Its ``route`` is right at any time, also after a failure."""

    def __init__(self, router: Router, model: str, context: CallContext) -> None:
        self._router = router
        self._model = model
        self._context = context
        self._routes: list[RoutingRecord] = []
        self._failed: RoutingRecord | None = None
        self._answered = 0

    @property
    def route(self) -> RoutingRecord:
        """Return the tries of all requests and what they took. Its backend is where the request went that failed, or else the one
        that was sent last."""
        last = self._failed or (self._routes[-1] if self._routes else RoutingRecord())
        return RoutingRecord(
            last.backend,
            sum(route.attempts for route in self._routes),
            sum((route.answered for route in self._routes), TokenUsage()),
            sum((route.lost for route in self._routes), TokenUsage()),
            any(route.estimated for route in self._routes),
        )

    async def embed(self, texts: Sequence[str]) -> bytes:
        """The vectors, as the ``data`` of an ``EmbeddingReply``.

        Raises:
            SpassError: as ``Router.embed``: the first failure. No request is under way then.
        """
        limits = self._router.embedding_limits(self._model)
        parts = [*batches(texts, limits)]
        vectors = [b""] * len(parts)
        left = iter(enumerate(parts))
        await run_concurrently([self._work(left, vectors) for _ in range(min(limits.at_once, len(parts)))])
        if self._answered < len(parts):  # a task group takes a request that was cancelled from within for one that is done
            raise asyncio.CancelledError
        return b"".join(vectors)

    async def _work(self, left: Iterator[tuple[int, tuple[str, ...]]], vectors: list[bytes]) -> None:
        """Takes one batch after the other from ``left``, which others take from too."""
        for number, texts in left:
            vectors[number] = await self._request(texts)

    async def _request(self, texts: tuple[str, ...]) -> bytes:
        route = RoutingRecord()
        self._routes.append(route)
        expected = TokenUsage(sum(estimate_tokens(len(text)) for text in texts))
        try:
            routed = await self._router.embed(EmbeddingRequest(self._model, texts), self._context.with_expected(expected), route)
        except SpassError:
            self._failed = self._failed or route
            raise
        self._answered += 1
        return routed.reply.data
