"""Test the concurrent requests for a long list of texts, and their failures. Time is simulated."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.calls.pipeline import Calls
from spass.core.errors import UpstreamError, UpstreamRejected
from spass.core.messages import TokenUsage
from spass.models.errors import AttemptFailed, BackendBadRequest, BackendRateLimited, BackendUnavailable
from spass.models.retries import Timing
from spass.models.router import Router
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest, pack_rows
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from tests.unit.calls.skipping_loop import run_with_virtual_time
from tests.unit.tools.fakes import scope_for, table_of

PER_REQUEST = 32  # texts per request of the provider ``ollama``


@dataclass
class Server:
    """A provider that takes ``seconds`` for a request. The first number of a vector is the number in its text.
    ``max_in_flight`` is the largest number of concurrent requests."""

    seconds: Callable[[int], float] = lambda number: 1.0
    failures: dict[int, list[AttemptFailed]] = field(default_factory=dict)
    provider: str = "ollama"
    max_concurrent: int | None = None
    requests: list[int] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    cancelled: list[int] = field(default_factory=list)

    def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        raise AssertionError("this provider only embeds")

    async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
        number = int(request.texts[0]) // PER_REQUEST
        self.requests.append(number)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds(number))
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.in_flight -= 1
        if self.failures.get(number):
            raise self.failures[number].pop(0)
        return EmbeddingReply(pack_rows([(float(text), 1.0) for text in request.texts]), len(request.texts), 2, TokenUsage(10))

    async def aclose(self) -> None:
        pass

    def calls(self, retries: int = 3) -> Calls:
        """Return a pipeline with this provider. Each retry waits for the maximum delay."""
        config = GatewayConfig.model_validate(
            {
                "llm": {
                    "retries": retries,
                    "backends": [
                        {
                            "name": "server",
                            "provider": self.provider,
                            "supported_models": ["e"],
                            "max_concurrent": self.max_concurrent,
                        }
                    ],
                },
                "models": [{"name": "e", "kind": "embedding", "dimensions": 2, "context_window": 16}],
                "defaults": {"embedding_model": "e"},
            }
        )
        timing = Timing(clock=lambda: asyncio.get_running_loop().time(), random=lambda: 1.0)
        router = Router(config.llm, config.models, lambda _: "key", timing=timing, provider_of=lambda *_: self)
        return Calls(config, router, Cascade(config))


def texts(batches: int) -> list[str]:
    return [str(number) for number in range(batches * PER_REQUEST)]


def embed(server: Server, count: int, *, retries: int = 3) -> tuple[list[float], float]:
    """Embed the texts of ``count`` requests. Return the first number of each vector, and the duration in seconds."""
    reply, seconds = run_with_virtual_time(server.calls(retries).embed(scope_for(seconds=3600), texts(count)))
    return [row[0] for row in reply.rows()], seconds


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=12))
def test_vectors_have_the_order_of_the_texts_for_any_order_of_replies(durations: list[float]) -> None:
    server = Server(seconds=lambda number: durations[number])
    numbers, seconds = embed(server, len(durations))
    assert numbers == [float(text) for text in texts(len(durations))]
    assert server.max_in_flight == min(4, len(durations))
    assert seconds < sum(durations) / server.max_in_flight + max(durations) + 1e-6


def test_four_requests_are_in_flight_together() -> None:
    server = Server()
    _, seconds = embed(server, 8)
    assert (server.max_in_flight, round(seconds, 3)) == (4, 2)


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_requests_in_flight_stay_within_the_backends_limit(max_in_flight: int) -> None:
    server = Server(max_concurrent=max_in_flight)
    embed(server, 6)
    assert (server.max_in_flight, server.requests) == (max_in_flight, [0, 1, 2, 3, 4, 5])


def test_many_requests_are_one_call_in_the_cost_and_in_the_audit() -> None:
    scope = scope_for()
    run_with_virtual_time(Server().calls().embed(scope, texts(6)))
    (record,) = [put.attributes for put in table_of(scope).written]
    assert (record["status"], record["attempts"], record["prompt_tokens"], record["backend"]) == ("ok", 6, 60, "server")
    assert scope.tally.total.sub_calls == 1


def test_a_failed_request_is_retried_while_the_others_continue() -> None:
    server = Server(failures={1: [BackendRateLimited("slow down", retry_after=5)], 2: [BackendUnavailable("busy")]})
    numbers, seconds = embed(server, 8)
    assert numbers == [float(text) for text in texts(8)]
    assert sorted(server.requests) == [0, 1, 1, 2, 2, 3, 4, 5, 6, 7]
    assert round(seconds, 3) == 7  # a request of 1 s, a wait of 5 s and a retry of 1 s; the other requests have ended by then


def test_the_first_final_failure_cancels_all_other_requests() -> None:
    server = Server(seconds=lambda number: 1.0 + number, failures={1: [BackendBadRequest("not that")]})
    scope = scope_for()

    async def run() -> float:
        with pytest.raises(UpstreamRejected, match="not that"):
            await server.calls().embed(scope, texts(9))
        assert server.in_flight == 0
        request_count = len(server.requests)
        await asyncio.sleep(100)
        assert len(server.requests) == request_count
        return 0

    _, seconds = run_with_virtual_time(run())
    assert round(seconds, 3) == 102
    assert (server.requests, sorted(server.cancelled)) == ([0, 1, 2, 3, 4], [2, 3, 4])
    (record,) = [put.attributes for put in table_of(scope).written]
    assert (record["status"], record["attempts"], record["prompt_tokens"]) == ("upstream_rejected", 5, 10)


def test_the_first_final_failure_cancels_requests_that_wait_for_a_retry() -> None:
    server = Server(
        seconds=lambda number: 1.0 + number, failures={0: [BackendRateLimited("", retry_after=50)], 1: [BackendBadRequest("no")]}
    )

    async def run() -> None:
        with pytest.raises(UpstreamRejected):
            await server.calls().embed(scope_for(), texts(2))

    _, seconds = run_with_virtual_time(run())
    assert round(seconds, 3) == 2


def test_each_request_has_its_own_retries() -> None:
    server = Server(failures={3: [BackendUnavailable("down")] * 9})

    async def run() -> None:
        with pytest.raises(UpstreamError):
            await server.calls(retries=2).embed(scope_for(seconds=3600), texts(4))

    run_with_virtual_time(run())
    assert sorted(server.requests) == [0, 1, 2, 3, 3, 3]


def test_cancelling_the_call_cancels_all_its_requests() -> None:
    server, scope = Server(), scope_for()

    async def run() -> None:
        task = asyncio.create_task(server.calls().embed(scope, texts(8)))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.in_flight == 0

    run_with_virtual_time(run())
    assert (server.requests, sorted(server.cancelled)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert [put.attributes["status"] for put in table_of(scope).written] == ["cancelled"]


def test_a_request_that_cancels_itself_cancels_the_call() -> None:
    class SelfCancellingServer(Server):
        async def embed(self, request: EmbeddingRequest, context: CallContext) -> EmbeddingReply:
            if request.texts[0] == "32":
                raise asyncio.CancelledError
            return await super().embed(request, context)

    with pytest.raises(asyncio.CancelledError):
        run_with_virtual_time(SelfCancellingServer().calls().embed(scope_for(), texts(3)))
