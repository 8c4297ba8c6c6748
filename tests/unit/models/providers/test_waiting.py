"""The waits of a request: for a connection, and then for the provider. Time is virtual."""

import asyncio
from dataclasses import dataclass

import httpx
import pytest

from spass.core.messages import Message, Role
from spass.models.errors import AttemptFailed, BackendTimeout
from spass.models.providers.openai_compatible import OpenAi
from spass.models.types import CallContext, ChatDelta, ChatRequest, EmbeddingReply, EmbeddingRequest
from tests.unit.models.scripted_upstream import backend, context
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time
SECONDS = 3.0


class DelayedTransport(httpx.AsyncBaseTransport):
    """A transport that answers each request after three seconds."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(SECONDS)
        return httpx.Response(200, json={"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})


async def ask(provider: OpenAi, call_context: CallContext, *, stream: bool = False) -> list[ChatDelta] | AttemptFailed:
    request = ChatRequest("gpt", (Message(Role.USER, "Hi"),), stream=stream)
    try:
        return [delta async for delta in provider.chat(request, call_context)]
    except AttemptFailed as failure:
        return failure


async def embed(provider: OpenAi, call_context: CallContext) -> EmbeddingReply | AttemptFailed:
    try:
        return await provider.embed(EmbeddingRequest("e", ("Hi",)), call_context)
    except AttemptFailed as failure:
        return failure


async def test_the_timeout_does_not_run_while_waiting_for_a_connection() -> None:
    provider = OpenAi(backend(max_concurrent=2, timeout=SECONDS + 1), "key", transport=DelayedTransport())
    start_time = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*[ask(provider, context(60)) for _ in range(10)])
    assert all(isinstance(answer, list) for answer in answers)
    assert asyncio.get_running_loop().time() - start_time == pytest.approx(5 * SECONDS)


async def test_waiting_for_a_connection_ends_at_the_deadline() -> None:
    provider = OpenAi(backend(max_concurrent=1, timeout=60), "key", transport=DelayedTransport())
    answers = await asyncio.gather(*[ask(provider, context(SECONDS * 1.5)) for _ in range(3)])
    assert [isinstance(answer, BackendTimeout) for answer in answers] == [False, False, True]
    assert isinstance(await ask(provider, context(60)), list)


@dataclass
class SlowBody(httpx.AsyncBaseTransport):
    """A transport that sends the first byte of each answer after ``seconds``."""

    seconds: float

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.seconds)
        answer = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "data": [{"embedding": [1.0]}]}
        return httpx.Response(200, json=answer)


ANSWER_SECONDS = 240.0


@pytest.mark.parametrize("timeout_seconds", [None, ANSWER_SECONDS + 1])
async def test_a_blocking_answer_waits_until_the_deadline_or_the_backends_timeout(timeout_seconds: float | None) -> None:
    provider = OpenAi(backend(timeout=timeout_seconds), "key", transport=SlowBody(ANSWER_SECONDS))
    assert isinstance(await ask(provider, context(270)), list)
    assert isinstance(await ask(provider, context(ANSWER_SECONDS - 1)), BackendTimeout)
    impatient_provider = OpenAi(backend(timeout=ANSWER_SECONDS - 1), "key", transport=SlowBody(ANSWER_SECONDS))
    start_time = asyncio.get_running_loop().time()
    assert isinstance(await ask(impatient_provider, context(270)), BackendTimeout)
    assert asyncio.get_running_loop().time() - start_time == pytest.approx(ANSWER_SECONDS - 1)


async def test_a_stream_and_an_embedding_end_after_two_minutes_of_silence_by_default() -> None:
    provider = OpenAi(backend(), "key", transport=SlowBody(ANSWER_SECONDS))
    for work in (ask(provider, context(270), stream=True), embed(provider, context(270))):
        start_time = asyncio.get_running_loop().time()
        assert isinstance(await work, BackendTimeout)
        assert asyncio.get_running_loop().time() - start_time == pytest.approx(120)
    patient_provider = OpenAi(backend(timeout=ANSWER_SECONDS + 1), "key", transport=SlowBody(ANSWER_SECONDS))
    assert isinstance(await embed(patient_provider, context(270)), EmbeddingReply)
