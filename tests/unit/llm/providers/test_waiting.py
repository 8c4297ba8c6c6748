"""Requests that wait for a connection: the provider cannot help it, so its clock does not run. Time here is virtual."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest

from spass.core.messages import Message, Role
from spass.llm.errors import BackendFailed, BackendTimedOut
from spass.llm.providers.openai import OpenAi
from spass.llm.types import CallContext, ChatDelta, ChatRequest
from tests.unit.llm.upstream import backend, context
from tests.unit.virtual_time import BACKEND

pytestmark = pytest.mark.anyio
SECONDS = 3.0


@pytest.fixture
def anyio_backend() -> tuple[str, Mapping[str, object]]:
    return BACKEND


class Steady(httpx.AsyncBaseTransport):
    """Answers each request after three seconds."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(SECONDS)
        return httpx.Response(200, json={"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})


async def ask(provider: OpenAi, within: CallContext) -> list[ChatDelta] | BackendFailed:
    try:
        return [delta async for delta in provider.chat(ChatRequest("gpt", (Message(Role.USER, "Hi"),)), within)]
    except BackendFailed as failure:
        return failure


async def test_a_backends_timeout_does_not_run_while_a_request_waits_for_a_connection() -> None:
    provider = OpenAi(backend(max_concurrent=2, timeout=SECONDS + 1), "key", transport=Steady())
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*[ask(provider, context(60)) for _ in range(10)])
    assert all(isinstance(answer, list) for answer in answers)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5 * SECONDS)


async def test_who_waits_for_a_connection_waits_until_the_deadline_at_most_and_leaves_none_behind() -> None:
    provider = OpenAi(backend(max_concurrent=1, timeout=60), "key", transport=Steady())
    answers = await asyncio.gather(*[ask(provider, context(SECONDS * 1.5)) for _ in range(3)])
    assert [isinstance(answer, BackendTimedOut) for answer in answers] == [False, False, True]
    assert isinstance(await ask(provider, context(60)), list)
